"""Configurations of BERT, RoBERTa and ALBERT as our options.

All three are post-norm encoders of self-attention with learned positions, a norm after the embeddings, a pooler on the
first token and a dense layer before the scores of the vocabulary. RoBERTa counts positions from the padding id plus one
and has one token type; ALBERT has embeddings of their own width and shares its blocks among layers.
"""

from collections.abc import Mapping
from typing import Any

from transformers import AlbertConfig, BertConfig, PreTrainedConfig, RobertaConfig

from depthwise.config import ModelConfig, StackConfig, check_model
from depthwise.errors import CheckpointError, ConfigError, Problem
from depthwise.models.backbone import DepthwiseModel
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.models.question_answering import DepthwiseForQuestionAnswering
from depthwise.models.sequence_classification import DepthwiseForSequenceClassification
from depthwise.models.token_classification import DepthwiseForTokenClassification

SOURCE = "config.json"
FAMILIES: dict[str, type[PreTrainedConfig]] = {"bert": BertConfig, "roberta": RobertaConfig, "albert": AlbertConfig}
NAMES = {"bert": "Bert", "roberta": "Roberta", "albert": "Albert"}
"""How the classes of a family begin."""
MODELS: dict[str, type[DepthwisePreTrainedModel]] = {
    "Model": DepthwiseModel,
    "ForMaskedLM": DepthwiseForMaskedLM,
    "ForPreTraining": DepthwiseForMaskedLM,
    "ForSequenceClassification": DepthwiseForSequenceClassification,
    "ForTokenClassification": DepthwiseForTokenClassification,
    "ForQuestionAnswering": DepthwiseForQuestionAnswering,
}
"""What we make of a class, by how its name ends. Pre-training is masked language modelling and a second head."""
ACTIVATIONS = {
    **{name: name for name in ("relu", "gelu", "gelu_new", "silu", "tanh")},
    **{"gelu_python": "gelu", "gelu_fast": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "swish": "silu"},
}
REFUSED = {
    "is_decoder": "this is a decoder",
    "add_cross_attention": "this model attends to another sequence",
    "quantization_config": "these weights are quantised",
}
"""Settings that our models have no counterpart for, in words."""


def parse_config(raw: Mapping[str, Any]) -> PreTrainedConfig:
    """The configuration of one of the three families, defaults filled in."""
    family = raw.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        found = "names no model_type" if family is None else f"names the model_type {family!r}"
        raise CheckpointError(f"{SOURCE} {found}; what can be imported is {_listed(FAMILIES)}")
    try:
        return FAMILIES[family].from_dict(dict(raw))
    except Exception as error:  # each option has its own way to be wrong
        reason = " ".join(str(error).split()).rstrip(".")
        raise CheckpointError(f"{SOURCE} is not as Transformers writes it: {reason}; correct it") from error


def model_class(raw: Mapping[str, Any], *, bare: bool) -> type[DepthwisePreTrainedModel]:
    """Our model for the architecture that a configuration names; the encoder alone where that is wanted."""
    if bare:
        return DepthwiseModel
    start = NAMES[raw["model_type"]]
    named = raw.get("architectures")
    name = named[0] if isinstance(named, list) and named else named or None
    by_name = {start + end: ours for end, ours in MODELS.items() if start + end != "RobertaForPreTraining"}
    if not isinstance(name, str) or name not in by_name:
        found = "names no architecture" if name is None else f"names the architecture {name!r}"
        raise CheckpointError(
            f"{SOURCE} {found}; what can be imported is {_listed(by_name)}, or the encoder alone with --bare"
        )
    return by_name[name]


def options_from_config(config: PreTrainedConfig) -> ModelConfig:
    """Our options for a configuration of one of the three families.

    Raises ``ConfigError`` with everything that our models cannot represent. Dropout is ours: ALBERT has none behind its
    feed-forward network, and RoBERTa's classifier has a second one before its dense layer.
    """
    problems = [
        Problem(name, f"{meaning}, which cannot be imported; give a plain encoder")
        for name, meaning in REFUSED.items()
        if getattr(config, name, None)
    ]
    positions = getattr(config, "position_embedding_type", None) or "absolute"
    if positions != "absolute":
        message = f"{positions!r} positions have no counterpart here; import a model with absolute ones"
        problems.append(Problem("position_embedding_type", message))
    if config.hidden_act not in ACTIVATIONS:
        message = f"{config.hidden_act!r} is none of the activations {', '.join(ACTIVATIONS)}; import a model with one"
        problems.append(Problem("hidden_act", message))
    if config.pad_token_id is None:
        problems.append(Problem("pad_token_id", "every model needs the id of padding; give a number"))
    if config.model_type == "albert" and not 1 <= config.num_hidden_groups <= config.num_hidden_layers:
        message = f"{config.num_hidden_groups} is not between 1 and num_hidden_layers {config.num_hidden_layers}"
        problems.append(Problem("num_hidden_groups", f"{message}; import a model that runs all its groups"))
    if problems:
        raise ConfigError(SOURCE, problems)
    options = _options(config)
    if problems := check_model(options):
        raise ConfigError(SOURCE, problems)
    return options


def layer_blocks(config: PreTrainedConfig) -> list[tuple[int, int]] | None:
    """For each layer of an ALBERT its group and its place in the group; none for the others.

    Every one of ``num_hidden_layers`` steps runs all blocks of one group, as Transformers counts them.
    """
    if config.model_type != "albert":
        return None
    steps, groups, inner = config.num_hidden_layers, config.num_hidden_groups, config.inner_group_num
    return [(int(step / (steps / groups)), place) for step in range(steps) for place in range(inner)]


def _options(config: PreTrainedConfig) -> ModelConfig:
    is_albert, blocks = config.model_type == "albert", layer_blocks(config)
    offset = config.pad_token_id + 1 if config.model_type == "roberta" else 0
    activation = ACTIVATIONS[config.hidden_act]
    dropout = config.classifier_dropout_prob if is_albert else config.classifier_dropout
    order = list(dict.fromkeys(blocks or ()))
    encoder = StackConfig(
        num_layers=config.num_hidden_layers if blocks is None else len(blocks),
        shared_layers=None if blocks is None else tuple(order.index(block) for block in blocks),
        mixer="attention",
        num_heads=config.num_attention_heads,
        ffn_width=config.intermediate_size,
        norm="post",
        norm_epsilon=config.layer_norm_eps,
        activation=activation,
        positions="learned",
        max_positions=config.max_position_embeddings - offset,
        dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
    )
    return ModelConfig(
        vocab_size=config.vocab_size,
        width=config.hidden_size,
        encoder=encoder,
        tied_embeddings="all" if config.tie_word_embeddings else "none",
        scale_embedding=False,
        position_offset=offset,
        embedding_width=config.embedding_size if is_albert else None,
        embedding_norm=True,
        token_types=config.type_vocab_size,
        head_transform="gelu" if config.model_type == "roberta" else activation,
        pooling="first_tanh",
        classifier_dropout=config.hidden_dropout_prob if dropout is None else dropout,
    )


def _listed(names: Mapping[str, Any]) -> str:
    *front, last = names
    return f"{', '.join(front)} or {last}"
