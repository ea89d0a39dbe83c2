"""Weights of fairseq models under our names.

Names changed twice: the norms of a ``lightconv`` encoder and of early Transformers were numbered (``layer_norms.0``),
queries, keys and values were stacked in one matrix (``in_proj_weight``), and an untied output matrix was called
``embed_out``. Files of all three generations are read; which one a file belongs to need not be known. The bands of an
adaptive softmax are in the head's own layout here: one matrix per band and one for the entries of the other bands.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from depthwise.config import ModelConfig, StackConfig
from depthwise.errors import ConfigError, Problem
from depthwise.interop.weights import misfits, tie
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.language_head import tied_weights
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.shapes import Tensor

_PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}
_LAYER = {
    "linear1": "mixer.in_projection",
    "linear2": "mixer.out_projection",
    "conv": "mixer",
    "conv.weight_linear": "mixer.kernel",
    **{f"self_attn.{theirs}": f"mixer.projections.{ours}" for theirs, ours in _PROJECTIONS.items()},
    "fc1": "feed_forward.hidden",
    "fc2": "feed_forward.out",
    "final_layer_norm": "feed_forward_residual.norm",
    "self_attn_layer_norm": "mixer_residual.norm",
}
LAYER_MODULES = {
    "encoder": {
        **_LAYER,
        "layer_norm1": "mixer_residual.norm",
        "layer_norm2": "feed_forward_residual.norm",
        "layer_norms.0": "mixer_residual.norm",
        "layer_norms.1": "feed_forward_residual.norm",
    },
    "decoder": {
        **_LAYER,
        **{f"encoder_attn.{theirs}": f"cross.projections.{ours}" for theirs, ours in _PROJECTIONS.items()},
        "conv_layer_norm": "mixer_residual.norm",
        "encoder_attn_layer_norm": "cross_residual.norm",
        "layer_norms.0": "mixer_residual.norm",
        "layer_norms.1": "cross_residual.norm",
        "layer_norms.2": "feed_forward_residual.norm",
    },
}
"""Modules of one layer: theirs to ours."""
SIDE_MODULES = {
    "embed_tokens": "embedding.tokens",
    "embed_positions": "embedding.positions",
    "layer_norm": "stack.final_norm",
}
"""Modules of one side outside its layers: theirs to ours. A learned position keeps its row: both count from 2."""
OUTPUT = {
    "decoder.output_projection.weight": "head.weight",
    "decoder.embed_out": "head.weight",
    "decoder.adaptive_softmax.head.word_proj.weight": "head.tables.0.weight",
    "decoder.adaptive_softmax.head.class_proj.weight": "head.bands.weight",
}
"""Output matrices outside the numbered bands: theirs to ours."""
UNTIED_HEAD = "decoder.adaptive_softmax.head.weight"
"""The first band and the entries of the others in one matrix, where they are no embedding too."""
ALL_TIED = ("model.encoder.embedding.tokens.weight", "model.decoder.embedding.tokens.weight", "head.weight")
"""Our names of the one matrix that a joined dictionary can have."""
FINAL_NORM_SINCE = {"encoder": 2, "decoder": 3}
"""The version of a Transformer's side from which on a pre-norm stack ends in a norm."""

_STACKED = re.compile(r"(.*(?:self_attn|encoder_attn))\.in_proj_(weight|bias)")
_DROPPED = re.compile(
    r"(?:encoder|decoder)\."
    r"(?:version|embed_positions\.(?:_float_tensor|weights)|embed_tokens\._float_tensor|adaptive_softmax\.version)"
)
_IN_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.+)\.(\w+)")
_IN_BAND = re.compile(r"decoder\.(embed_tokens\.embeddings|adaptive_softmax\.tail)\.(\d+)\.([012])\.weight")
_TABLE = re.compile(r"(encoder|decoder)\.embed_tokens\.(?:embeddings\.\d+\.0\.)?weight")
_IN_SIDE = re.compile(r"(encoder|decoder)\.(\w+)\.(\w+)")


def without_absent_norms(options: ModelConfig, state: Mapping[str, Tensor]) -> ModelConfig:
    """The options without the last norms that the weights of an early pre-norm Transformer do not hold.

    Its arguments do not tell: fairseq goes by the version stored among the weights.
    """
    return replace(
        options,
        encoder=_without_absent_norm(options.encoder, "encoder", state),
        decoder=_without_absent_norm(options.decoder, "decoder", state),
    )


def _without_absent_norm(stack: StackConfig | None, side: str, state: Mapping[str, Tensor]) -> StackConfig | None:
    if stack is None or stack.mixer != "attention" or f"{side}.layer_norm.weight" in state:
        return stack
    version = state.get(f"{side}.version")
    is_early = version is None or float(version.flatten()[0]) < FINAL_NORM_SINCE[side]
    return replace(stack, final_norm=False) if is_early and stack.has_final_norm else stack


def convert_state_dict(state: Mapping[str, Tensor], options: ModelConfig) -> dict[str, Tensor]:
    """The state dict of the model with these options, tied matrices under each of their names.

    The model is a ``DepthwiseForSeq2SeqLM``, without an encoder a ``DepthwiseForCausalLM``. Nothing is lost or made up:
    raises ``ConfigError`` with the weights that have no place in the model, those that the model misses, those of
    another shape, those that come twice and tied matrices that differ.
    """
    expected = _expected_shapes(options)
    converted: dict[str, Tensor] = {}
    sources: dict[str, str] = {}
    left_over: list[str] = []
    problems: list[Problem] = []
    for source, key, tensor in _split_stacked(state, options):
        if _is_dropped(key, tensor):
            continue
        name = _our_name(key)
        if name not in expected:
            left_over.append(source)
            continue
        if name in converted:
            problems.append(Problem(source, f"is the same weight as {sources[name]}; remove one of them"))
        converted[name], sources[name] = _our_layout(name, tensor, expected[name]), source
    for names in _tied_names(options):
        problems += tie(converted, names, sources, "check how embeddings are shared")
    remedy = "check that arguments and dictionaries belong to these weights"
    problems += misfits(converted, sources, left_over, expected, remedy)
    if problems:
        raise ConfigError("fairseq weights", problems)
    return converted


def num_embeddings(state: Mapping[str, Tensor]) -> dict[str, int]:
    """How many types the embeddings of each side have, over all bands where there are any."""
    counts: dict[str, int] = {}
    for key, tensor in state.items():
        if table := _TABLE.fullmatch(key):
            counts[table[1]] = counts.get(table[1], 0) + tensor.shape[0]
    return counts


def model_class(options: ModelConfig) -> type[DepthwiseForSeq2SeqLM] | type[DepthwiseForCausalLM]:
    """The model that these options make of a fairseq checkpoint."""
    return DepthwiseForCausalLM if options.encoder is None else DepthwiseForSeq2SeqLM


def _expected_shapes(options: ModelConfig) -> dict[str, torch.Size]:
    with torch.device("meta"):
        model = model_class(options)(DepthwiseConfig.from_options(options))
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _split_stacked(state: Mapping[str, Tensor], options: ModelConfig) -> Iterator[tuple[str, str, Tensor]]:
    """Every weight with the key it is stored under and its key in the newest generation, one matrix each."""
    for source, tensor in state.items():
        if stacked := _STACKED.fullmatch(source):
            attention, leaf = stacked.groups()
            for projection, part in zip(("q_proj", "k_proj", "v_proj"), tensor.tensor_split(3), strict=True):
                yield source, f"{attention}.{projection}.{leaf}", part
        elif source == UNTIED_HEAD and options.adaptive is not None:
            size = options.adaptive.cutoffs[0]
            yield source, "decoder.adaptive_softmax.head.word_proj.weight", tensor[:size]
            yield source, "decoder.adaptive_softmax.head.class_proj.weight", tensor[size:]
        else:
            yield source, source, tensor


def _is_dropped(key: str, tensor: Tensor) -> bool:
    """Whether fairseq itself makes no use of it: versions, computed positions, the uninitialised bias (1, 1, C).

    A convolution bias that is used has the shape (C).
    """
    return _DROPPED.fullmatch(key) is not None or (key.endswith(".conv.conv_bias") and tensor.dim() == 3)


def _our_name(key: str) -> str | None:
    if key in OUTPUT:
        return OUTPUT[key]
    if in_band := _IN_BAND.fullmatch(key):
        return _our_band(*in_band.groups())
    if in_layer := _IN_LAYER.fullmatch(key):
        side, layer, module, leaf = in_layer.groups()
        ours = LAYER_MODULES[side].get(module)
        return None if ours is None else f"model.{side}.stack.layers.{layer}.{ours}.{leaf}"
    if in_side := _IN_SIDE.fullmatch(key):
        side, module, leaf = in_side.groups()
        ours = SIDE_MODULES.get(module)
        return None if ours is None else f"model.{side}.{ours}.{leaf}"
    return None


def _our_band(module: str, band: str, part: str) -> str | None:
    """An input band is a table (0) and a projection (1); an output band a projection (0), dropout and a table (2).

    Output bands count from the second on, which is the first with a projection.
    """
    if module.startswith("embed_tokens"):
        ours = {"0": "tables", "1": "projections"}.get(part)
        return None if ours is None else f"model.decoder.embedding.tokens.{ours}.{band}.weight"
    return {"0": f"head.projections.{band}.weight", "2": f"head.tables.{int(band) + 1}.weight"}.get(part)


def _our_layout(name: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    """Kernels of light convolutions are (H, 1, K) where they were written without the CUDA layer; ours are (H, K).

    The narrowing of an output band is stored as a map from wide to narrow unless it is tied; ours is the input's way
    round always.
    """
    if name.endswith(".mixer.weight") and tensor.dim() == 3:
        return tensor.squeeze(1)
    is_narrowing = name.startswith("head.projections.")
    return tensor.t() if is_narrowing and tensor.shape != shape and tensor.t().shape == shape else tensor


def _tied_names(options: ModelConfig) -> list[tuple[str, ...]]:
    """Our names of matrices that are one and the same."""
    if options.encoder is not None and options.tied_embeddings == "all":
        return [ALL_TIED]
    return [(source, target) for target, source in tied_weights(options, "head", "decoder").items()]
