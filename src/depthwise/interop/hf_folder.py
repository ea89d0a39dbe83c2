"""A folder of Transformers (configuration, weights, perhaps a tokenizer) as a run of our own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from depthwise.config import ModelConfig
from depthwise.errors import CheckpointError
from depthwise.interop.hf_files import read_config, read_tokenizer, read_weights
from depthwise.interop.hf_options import model_class, options_from_config, parse_config
from depthwise.interop.hf_weights import convert_weights, has_pooler
from depthwise.interop.run_folder import Conversion, check_destination, written_at
from depthwise.models.backbone import DepthwiseModel
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.models.sequence_classification import DepthwiseForSequenceClassification
from depthwise.models.token_classification import DepthwiseForTokenClassification

INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]
"""What a tokenizer gives to a model with several token types; ALBERT's leaves the types out unless it is told."""
NOT_SAVED = ("local_files_only", "is_local", "auto_map")
"""How a tokenizer was loaded here, and where code of its own was, which the run does not hold."""
WITHOUT_TOKENIZER = "There is no tokenizer beside the weights: save one into the run before you give it text."
WITHOUT_POOLER = "The weights hold no pooler: a classifier that starts from this run gets a new one."
ENCODER_ALONE = "The run is an encoder without a head: load it with the Auto class of your task to fine-tune it."


def convert_hf(source: str | Path, destination: str | Path, *, bare: bool = False, force: bool = False) -> Conversion:
    """Write the BERT, RoBERTa or ALBERT in the folder ``source`` as a run: configuration, weights, tokenizer files.

    With ``bare`` the encoder alone is kept (and its pooler), whichever head it has. The destination gets everything or,
    after an error, nothing. Raises ``CheckpointError`` for files that are missing, cannot be read or do not fit,
    ``ConfigError`` for options that our models do not have and for weights that do not fit the configuration.
    """
    source, destination = Path(source), Path(destination)
    check_destination(destination, source, force=force)
    raw = read_config(source)
    config = parse_config(raw)
    kind, options = model_class(raw, bare=bare), options_from_config(config)
    tokenizer = read_tokenizer(source)
    _check_tokenizer(tokenizer, config, source)
    file, weights = read_weights(source)
    ours = DepthwiseConfig.from_options(options, **_special_ids(config, tokenizer), **_labels(config, kind))
    remarks = [ENCODER_ALONE] if kind is DepthwiseModel else []
    with torch.device("meta"):
        if kind is DepthwiseModel and not has_pooler(weights, config):
            model: DepthwisePreTrainedModel = DepthwiseModel(ours, pools=False)
            remarks.append(WITHOUT_POOLER)
        else:
            model = kind(ours)
    converted = convert_weights(weights, config, model)
    model.load_state_dict(converted.weights, assign=True)
    model.tie_weights()
    if converted.left_out:
        parts = dict.fromkeys(key.rpartition(".")[0] for key in converted.left_out)
        remarks.append(f"Left out, since this model has no use for it: {', '.join(parts)}.")
    with written_at(destination) as folder:
        model.eval().save_pretrained(folder)
        if tokenizer is not None:
            _fit_tokenizer(tokenizer, options)
            tokenizer.save_pretrained(folder)
        else:
            remarks.append(WITHOUT_TOKENIZER)
    return Conversion(destination, file, type(model).__name__, model.num_parameters(), tuple(remarks))


def _fit_tokenizer(tokenizer: PreTrainedTokenizerBase, options: ModelConfig) -> None:
    """Let a tokenizer give the types of tokens where there are several, and cut what is too long for the model."""
    assert options.encoder is not None
    assert options.encoder.max_positions is not None
    tokenizer.model_max_length = min(tokenizer.model_max_length, options.encoder.max_positions)
    if options.token_types > 1:
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = INPUT_NAMES
    for name in NOT_SAVED:
        tokenizer.init_kwargs.pop(name, None)


def _special_ids(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, int | None]:
    """Ids of special tokens; those that a BERT names only in its tokenizer are its first and its last token."""
    starts = [config.bos_token_id, *([tokenizer.bos_token_id, tokenizer.cls_token_id] if tokenizer else [])]
    ends = [config.eos_token_id, *([tokenizer.eos_token_id, tokenizer.sep_token_id] if tokenizer else [])]
    return {
        "bos_token_id": _first(starts),
        "eos_token_id": _first(ends),
        "pad_token_id": config.pad_token_id,
        "decoder_start_token_id": None,
    }


def _first(ids: list[Any]) -> int | None:
    return next((token for token in ids if isinstance(token, int)), None)


def _labels(config: PreTrainedConfig, kind: type[DepthwisePreTrainedModel]) -> Mapping[str, Any]:
    """Names of the classes, where there are any."""
    if kind not in (DepthwiseForSequenceClassification, DepthwiseForTokenClassification):
        return {}
    return {"id2label": config.id2label, "label2id": config.label2id, "problem_type": config.problem_type}


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase | None, config: PreTrainedConfig, folder: Path) -> None:
    if tokenizer is not None and len(tokenizer) > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer in {folder} has {len(tokenizer)} types, but the model has {config.vocab_size} embeddings; "
            "give the tokenizer that the model was trained with"
        )
