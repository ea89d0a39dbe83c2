"""Weights of BERT, RoBERTa and ALBERT under our names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig

from depthwise.errors import ConfigError, Problem
from depthwise.interop.hf_options import layer_blocks
from depthwise.interop.weights import misfits, tie
from depthwise.models.backbone import DepthwiseModel
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.models.question_answering import DepthwiseForQuestionAnswering
from depthwise.models.sequence_classification import DepthwiseForSequenceClassification
from depthwise.models.token_classification import DepthwiseForTokenClassification
from depthwise.shapes import Tensor

_PROJECTIONS = ("query", "key", "value")
_LAYER = {
    **{f"attention.self.{name}": f"mixer.projections.{name}" for name in _PROJECTIONS},
    "attention.output.dense": "mixer.projections.out",
    "attention.output.LayerNorm": "mixer_residual.norm",
    "intermediate.dense": "feed_forward.hidden",
    "output.dense": "feed_forward.out",
    "output.LayerNorm": "feed_forward_residual.norm",
}
_ALBERT_LAYER = {
    **{f"attention.{name}": f"mixer.projections.{name}" for name in _PROJECTIONS},
    "attention.dense": "mixer.projections.out",
    "attention.LayerNorm": "mixer_residual.norm",
    "ffn": "feed_forward.hidden",
    "ffn_output": "feed_forward.out",
    "full_layer_layer_norm": "feed_forward_residual.norm",
}
_OUTSIDE_LAYERS = {
    "embeddings.word_embeddings": "encoder.embedding.tokens",
    "embeddings.position_embeddings": "encoder.embedding.positions",
    "embeddings.token_type_embeddings": "encoder.embedding.token_types",
    "embeddings.LayerNorm": "encoder.embedding.norm",
}
ENCODERS = {
    "bert": {**_OUTSIDE_LAYERS, "pooler.dense": "pooler"},
    "roberta": {**_OUTSIDE_LAYERS, "pooler.dense": "pooler"},
    "albert": {
        **_OUTSIDE_LAYERS,
        "encoder.embedding_hidden_mapping_in": "encoder.embedding.projection",
        "pooler": "pooler",
    },
}
"""Modules of an encoder outside its layers: theirs to ours."""
_TAGGER = {"classifier": "classifier"}
_POINTERS = {"qa_outputs": "pointers"}
HEADS: dict[type[DepthwisePreTrainedModel], dict[str, dict[str, str]]] = {
    DepthwiseModel: {"bert": {}, "roberta": {}, "albert": {}},
    DepthwiseForMaskedLM: {
        "bert": {
            "cls.predictions.transform.dense": "head.transform.dense",
            "cls.predictions.transform.LayerNorm": "head.transform.norm",
            "cls.predictions.decoder": "head",
            "cls.predictions": "head",
        },
        "roberta": {
            "lm_head.dense": "head.transform.dense",
            "lm_head.layer_norm": "head.transform.norm",
            "lm_head.decoder": "head",
            "lm_head": "head",
        },
        "albert": {
            "predictions.dense": "head.transform.dense",
            "predictions.LayerNorm": "head.transform.norm",
            "predictions.decoder": "head",
            "predictions": "head",
        },
    },
    DepthwiseForSequenceClassification: {
        "bert": _TAGGER,
        "roberta": {"classifier.dense": "model.pooler", "classifier.out_proj": "classifier"},
        "albert": _TAGGER,
    },
    DepthwiseForTokenClassification: dict.fromkeys(ENCODERS, _TAGGER),
    DepthwiseForQuestionAnswering: dict.fromkeys(ENCODERS, _POINTERS),
}
"""Modules of a head: theirs to ours. The bias of the vocabulary has two names, tied if the embeddings are."""
SECOND_HEADS = ("cls.seq_relationship.", "sop_classifier.")
"""What pre-training has beside masked language modelling: the order of two texts."""
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")

_IN_LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.+)")
_IN_GROUP = re.compile(r"encoder\.albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.(.+)")
_LEAVES = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
"""Norms of early files have a gamma and a beta."""


@dataclass(frozen=True)
class Converted:
    """Weights under our names, and which of theirs were left out because this model has no use for them."""

    weights: dict[str, Tensor]
    left_out: list[str]


def convert_weights(
    weights: Mapping[str, Tensor], config: PreTrainedConfig, model: DepthwisePreTrainedModel
) -> Converted:
    """The weights for a model that was built (on whatever device) with the options of this configuration.

    Nothing is made up: raises ``ConfigError`` with the weights that have no place in the model, those that the model
    misses, those of another shape and those that are tied but differ. A second head of pre-training, heads of what is
    to become an encoder alone, and the pooler of models that do not use it are left out.
    """
    names = _Names(config, type(model), weights)
    expected = {name: value.shape for name, value in model.state_dict().items()}
    converted: dict[str, Tensor] = {}
    sources: dict[str, str] = {}
    left_out: list[str] = []
    left_over: list[str] = []
    problems: list[Problem] = []
    for key, tensor in weights.items():
        if names.is_buffer(key):
            continue
        name = names.ours(key)
        if names.is_useless(key, name, expected):
            left_out.append(key)
        elif name is None or name not in expected:
            left_over.append(key)
        elif name in converted and not torch.equal(converted[name], tensor):
            remedy = "remove one of them, or keep the encoder alone with --bare"
            problems.append(Problem(key, f"differs from {sources[name]}, to which it is tied; {remedy}"))
        else:
            converted[name], sources[name] = tensor, key
    for target, source in (getattr(model, "_tied_weights_keys", None) or {}).items():
        remedy = "set tie_word_embeddings to false in config.json if that is meant"
        problems += tie(converted, (source, target), sources, remedy)
    remedy = "check that config.json belongs to these weights"
    problems += misfits(converted, sources, left_over, expected, remedy)
    if problems:
        raise ConfigError("weights", problems)
    return Converted(converted, left_out)


def has_pooler(weights: Mapping[str, Tensor], config: PreTrainedConfig) -> bool:
    """Whether the encoder among these weights has a pooler."""
    return any(key.removeprefix(f"{config.model_type}.").startswith("pooler.") for key in weights)


class _Names:
    """From their names to ours. The encoder stands under the name of its family, or at the root if it is alone."""

    def __init__(
        self, config: PreTrainedConfig, kind: type[DepthwisePreTrainedModel], weights: Mapping[str, Tensor]
    ) -> None:
        self.kind, self.family = kind, config.model_type
        prefix = f"{self.family}."
        self.prefix = prefix if any(key.startswith(prefix) for key in weights) else ""
        self.root = "" if kind is DepthwiseModel else "model."
        self.heads = HEADS[kind][self.family]
        output = next((module for module in self.heads if module.endswith(".decoder")), None)
        has_own_bias = not config.tie_word_embeddings and f"{output}.bias" in weights
        self.unread = f"{output.removesuffix('.decoder')}.bias" if output and has_own_bias else None
        self.blocks = list(dict.fromkeys(layer_blocks(config) or ()))

    def is_buffer(self, key: str) -> bool:
        return key.removeprefix(self.prefix) in BUFFERS

    def ours(self, key: str) -> str | None:
        """Our name of a weight; none if it is no weight of such a model."""
        module, _, leaf = key.rpartition(".")
        if leaf not in _LEAVES:
            return None
        if module in self.heads:
            return f"{self.heads[module]}.{_LEAVES[leaf]}"
        if not key.startswith(self.prefix):
            return None
        found = self._in_encoder(module.removeprefix(self.prefix))
        return None if found is None else f"{self.root}{found}.{_LEAVES[leaf]}"

    def is_useless(self, key: str, name: str | None, expected: Mapping[str, object]) -> bool:
        """Whether a weight that the file may well hold serves nothing in this kind of model."""
        if self.kind is DepthwiseModel and not key.startswith(self.prefix):
            return True
        if self.kind is DepthwiseForMaskedLM and (key.startswith(SECOND_HEADS) or key == self.unread):
            return True
        is_pooler = key.removeprefix(self.prefix).startswith("pooler.")
        has_own = self.kind is DepthwiseForSequenceClassification and self.family == "roberta"
        return is_pooler and (name not in expected or has_own)

    def _in_encoder(self, module: str) -> str | None:
        if outside := ENCODERS[self.family].get(module):
            return outside
        if self.family == "albert":
            if not (match := _IN_GROUP.fullmatch(module)):
                return None
            block, inside = (int(match[1]), int(match[2])), _ALBERT_LAYER.get(match[3])
            number = self.blocks.index(block) if block in self.blocks else None
        else:
            if not (match := _IN_LAYER.fullmatch(module)):
                return None
            number, inside = int(match[1]), _LAYER.get(match[2])
        return None if number is None or inside is None else f"encoder.stack.layers.{number}.{inside}"
