"""Whether the options of a model agree with each other.

Every check is a small generator of problems. It sees the configuration through a ``View``, so that a check which needs
an option that is already known to be wrong ends there instead of reporting a consequence of the first mistake.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from depthwise.config.heads import kept_heads_fit
from depthwise.config.latent import gates_fit_the_model
from depthwise.config.model import ModelConfig, StackConfig
from depthwise.config.relative import distances_serve
from depthwise.config.structure import groups_share_layers, structure_fits_the_model
from depthwise.config.word_depths import word_depth_problems
from depthwise.errors import Problem

HEADED_KERNELS = ("lightconv", "dynamicconv")
"""Mixers whose channels share normalised kernels in heads."""
PROJECTED = (*HEADED_KERNELS, "depthwise")
"""Mixers that convolve each channel by itself, between an in- and an out-projection."""
CONVOLUTIONS = (*PROJECTED, "cnn")
NONNEGATIVE = ("softmax", "sigmoid", "square", "abs", "abs_l1", "abs_l2")
"""Kernel normalisations under which the mass on real tokens cannot cancel out."""
SERVES = {
    "kernel_sizes": ("attention", *CONVOLUTIONS),
    "glu": PROJECTED,
    "conv_width": PROJECTED,
    "input_dropout": PROJECTED,
    "kernel_heads": HEADED_KERNELS,
    "kernel_normalization": HEADED_KERNELS,
    "dropconnect": PROJECTED,
    "dropconnect_shared": PROJECTED,
    "renormalize_padding": PROJECTED,
    "conv_bias": CONVOLUTIONS,
    "kernel_from": ("dynamicconv",),
}
"""The mixers that an option serves; with the others only its default may stand."""
_DEFAULTS = {option.name: option.default for option in fields(StackConfig)}


class BrokenOption(Exception):
    """A check asked for an option that cannot be relied on."""


class View:
    """A configuration without its broken options: reading one of those raises ``BrokenOption``."""

    def __init__(self, config: object, path: str, broken: Collection[str]) -> None:
        self._config, self._path, self._broken = config, path, broken

    def __getattr__(self, name: str) -> Any:
        option = self._path + name
        if option in self._broken:
            raise BrokenOption(option)
        value = getattr(self._config, name)
        return View(value, option + ".", self._broken) if is_dataclass(value) else value

    def problem(self, name: str, message: str) -> Problem:
        return Problem(self._path + name, message)


def relation_problems(config: ModelConfig, broken: Collection[str]) -> Iterator[Problem]:
    """Contradictions between options, as far as they can be told without the broken ones (dotted paths)."""
    model = View(config, "", broken)
    for model_check in MODEL_CHECKS:
        yield from _unless_broken(partial(model_check, model))
    for side in ("encoder", "decoder"):
        for stack_check in STACK_CHECKS:
            yield from _unless_broken(partial(_check_stack, stack_check, model, side))


def _unless_broken(check: Callable[[], Iterator[Problem]]) -> Iterator[Problem]:
    try:
        yield from check()
    except BrokenOption:
        return


def _check_stack(check: "StackCheck", model: View, side: str) -> Iterator[Problem]:
    stack = getattr(model, side)
    if stack is not None:
        yield from check(stack, model, side == "encoder")


def _listed(names: Iterable[object], word: str) -> str:
    *front, last = map(str, names)
    return f"{', '.join(front)} {word} {last}" if front else last


def _divisors(number: int) -> str:
    return ", ".join(str(divisor) for divisor in range(1, min(number, 64) + 1) if number % divisor == 0)


# The model as a whole


def _has_a_stack(model: View) -> Iterator[Problem]:
    if model.encoder is None and model.decoder is None:
        yield model.problem("encoder", "a model needs at least one stack; add an encoder, a decoder or both")


def _source_vocabulary_has_a_source(model: View) -> Iterator[Problem]:
    if model.source_vocab_size is not None and (model.encoder is None) != (model.decoder is None):
        yield model.problem(
            "source_vocab_size", "has no effect without both an encoder and a decoder; remove it and use vocab_size"
        )


def _tied_vocabularies_are_one(model: View) -> Iterator[Problem]:
    if model.tied_embeddings != "all" or model.encoder is None or model.decoder is None:
        return
    if model.source_vocab_size not in (None, model.vocab_size):
        yield model.problem(
            "tied_embeddings",
            f'"all" shares one matrix, but source_vocab_size is {model.source_vocab_size} and vocab_size is '
            f'{model.vocab_size}; use "decoder" or "none", or one joint vocabulary',
        )


def _tied_decoder_exists(model: View) -> Iterator[Problem]:
    if model.tied_embeddings == "decoder" and model.decoder is None and model.encoder is not None:
        yield model.problem("tied_embeddings", '"decoder" needs a decoder; use "all" or "none"')


def _adaptive_serves_language_models(model: View) -> Iterator[Problem]:
    if model.adaptive is not None and model.encoder is not None:
        yield model.problem(
            "adaptive", "serves language models only (a decoder without an encoder); remove adaptive or the encoder"
        )


def _bands_stand_alone(model: View) -> Iterator[Problem]:
    if model.adaptive is None:
        return
    for option in ("embedding_width", "head_transform"):
        if getattr(model, option) is not None:
            yield model.problem(option, "does not go with adaptive, whose bands have their own widths; remove one")


def _token_types_serve_encoders(model: View) -> Iterator[Problem]:
    if model.token_types and model.decoder is not None:
        yield model.problem("token_types", "serves encoders without a decoder only; remove it or the decoder")


def _sentence_order_serves_encoders(model: View) -> Iterator[Problem]:
    if model.sentence_order and model.decoder is not None:
        yield model.problem("sentence_order", "serves encoders without a decoder only; remove it or the decoder")


def _cutoffs_are_below_the_vocabulary(model: View) -> Iterator[Problem]:
    if model.adaptive is not None and model.adaptive.cutoffs[-1] >= model.vocab_size:
        yield model.adaptive.problem(
            "cutoffs",
            f"the last cutoff {model.adaptive.cutoffs[-1]} leaves nothing of vocab_size {model.vocab_size} for the "
            "last band; keep all cutoffs below the vocabulary size",
        )


def _bands_divide_width(model: View) -> Iterator[Problem]:
    if model.adaptive is None:
        return
    divisor = model.adaptive.factor ** len(model.adaptive.cutoffs)
    if model.width % divisor:
        yield model.adaptive.problem(
            "factor",
            f"width {model.width} is not divisible by {model.adaptive.factor}**{len(model.adaptive.cutoffs)} = "
            f"{divisor}, which the last band needs; use a smaller factor, fewer cutoffs or a multiple of {divisor}",
        )


def _exits_are_within_the_stack(model: View) -> Iterator[Problem]:
    stack = model.encoder if model.decoder is None else model.decoder
    if model.exits is None or stack is None:
        return
    if stack.num_layers < 2:
        yield model.problem("exits", "a stack of one block has nowhere to leave early; remove exits or add layers")
    elif model.exits.depths is not None:
        if model.exits.depths[-1] > stack.num_layers:
            yield model.exits.problem(
                "depths",
                f"the stack has {stack.num_layers} blocks, so no exit after {model.exits.depths[-1]}; lower it",
            )
        elif model.exits.depths == (stack.num_layers,):
            yield model.exits.problem("depths", "names the end alone, which is always an exit; add lower ones")


def _bands_have_one_head(model: View) -> Iterator[Problem]:
    if model.exits is not None and model.adaptive is not None and model.exits.heads == "separate":
        yield model.exits.problem("heads", "an adaptive softmax serves all exits or none; use tied, or remove adaptive")


def _shared_norms_exist(model: View) -> Iterator[Problem]:
    stack = model.encoder if model.decoder is None else model.decoder
    if model.exits is None or stack is None or model.exits.norms == "separate":
        return
    if not (stack.norm == "pre" if stack.final_norm is None else stack.final_norm):
        yield model.exits.problem("norms", "has no effect in a stack without a last norm; remove it")


def _words_decide_in_encoders(model: View) -> Iterator[Problem]:
    if model.word_depths is None:
        return
    for problem in word_depth_problems(model.word_depths):
        yield model.word_depths.problem(problem.option, problem.message)
    if model.decoder is not None:
        yield model.problem("word_depths", "are depths of an encoder that stands alone; remove them, or the decoder")
    elif model.exits is not None or model.policy is not None:
        yield model.problem("word_depths", "are decided before the model runs; remove exits and policy, or word_depths")
    elif model.encoder is not None:
        for name in ("depth", "mean_depth", "least"):
            if ((asked := getattr(model.word_depths, name)) or 0) > model.encoder.num_layers:
                message = f"{asked} is more than the {model.encoder.num_layers} blocks there are; lower it"
                yield model.word_depths.problem(name, message)


# One stack


def _attends(stack: View, model: View, centred: bool) -> bool:
    """Whether the blocks hold self-attention or (in a decoder beside an encoder) cross-attention."""
    return stack.mixer == "attention" or (not centred and model.encoder is not None)


def _attention_heads_divide_width(stack: View, model: View, centred: bool) -> Iterator[Problem]:
    if _attends(stack, model, centred) and model.width % stack.num_heads:
        yield stack.problem(
            "num_heads",
            f"{stack.num_heads} attention heads do not divide width {model.width}; use one of {_divisors(model.width)}",
        )


def _kernel_heads_divide_channels(stack: View, model: View, centred: bool) -> Iterator[Problem]:
    if stack.mixer not in HEADED_KERNELS:
        return
    option = "num_heads" if stack.kernel_heads is None else "kernel_heads"
    heads = getattr(stack, option)
    channels = model.width if stack.conv_width is None else stack.conv_width
    said_for_attention = option == "num_heads" and channels == model.width and _attends(stack, model, centred)
    if channels % heads and not said_for_attention:
        yield stack.problem(
            option,
            f"{heads} heads do not divide the {channels} channels of the convolution; use one of {_divisors(channels)}",
        )


def _convolutions_have_kernels(stack: View, model: View, centred: bool) -> Iterator[Problem]:
    if stack.mixer in CONVOLUTIONS and stack.kernel_sizes is None:
        yield stack.problem(
            "kernel_sizes",
            f"{stack.mixer} needs kernel sizes; give one number for all layers or one for each, such as 3",
        )


def _kernels_match_layers(stack: View, model: View, centred: bool) -> Iterator[Problem]:
    if stack.mixer not in SERVES["kernel_sizes"] or stack.kernel_sizes is None:
        return
    if len(stack.kernel_sizes) not in (1, stack.num_layers):
        given = f"{len(stack.kernel_sizes)} kernel sizes for num_layers {stack.num_layers}"
        yield stack.problem("kernel_sizes", f"{given}; give one number for all layers or exactly {stack.num_layers}")


def _kernels_have_a_centre(stack: View, model: View, centred: bool) -> Iterator[Problem]:
    if not centred or stack.mixer not in SERVES["kernel_sizes"] or stack.kernel_sizes is None:
        return
    what = "window" if stack.mixer == "attention" else "kernel"
    for layer, size in enumerate(stack.kernel_sizes):
        if size % 2 == 0:
            where = f"in layer {layer}" if len(stack.kernel_sizes) > 1 else "in every layer"
            remedy = f"even {what}s have no centre; use {size - 1} or {size + 1}"
            yield stack.problem("kernel_sizes", f"{what} {size} {where} of an encoder looks both ways, but {remedy}")


def _option_serves_mixer(option: str, stack: View, model: View, centred: bool) -> Iterator[Problem]:
    if getattr(stack, option) != _DEFAULTS[option] and stack.mixer not in SERVES[option]:
        serves = _listed(SERVES[option], "and")
        yield stack.problem(option, f"has no effect with mixer {stack.mixer}, only with {serves}; remove it")


def _attention_dropout_has_attention(stack: View, model: View, centred: bool) -> Iterator[Problem]:
    if stack.attention_dropout and not _attends(stack, model, centred):
        yield stack.problem(
            "attention_dropout", f"has no effect in a stack of {stack.mixer} without cross-attention; remove it"
        )


def _shared_dropconnect_drops(stack: View, model: View, centred: bool) -> Iterator[Problem]:
    if stack.dropconnect_shared and not stack.dropconnect and stack.mixer in PROJECTED:
        yield stack.problem(
            "dropconnect_shared", "has no effect while dropconnect is 0; set dropconnect above 0 or remove it"
        )


def _renormalized_kernels_are_nonnegative(stack: View, model: View, centred: bool) -> Iterator[Problem]:
    if not stack.renormalize_padding or stack.mixer not in PROJECTED:
        return
    normalization = "none" if stack.mixer == "depthwise" else stack.kernel_normalization
    if normalization not in NONNEGATIVE:
        remedy = f"remove it or use lightconv or dynamicconv with {_listed(NONNEGATIVE, 'or')}"
        kernels = f"{stack.mixer} with kernel normalisation {normalization}"
        yield stack.problem(
            "renormalize_padding", f"divides by kernel mass, which can be zero or negative for {kernels}; {remedy}"
        )


def _shared_layers_match_layers(stack: View, model: View, centred: bool) -> Iterator[Problem]:
    if stack.shared_layers is not None and len(stack.shared_layers) not in (1, stack.num_layers):
        given = f"{len(stack.shared_layers)} blocks for num_layers {stack.num_layers}"
        yield stack.problem("shared_layers", f"{given}; give 0 for all layers or exactly {stack.num_layers} numbers")


def _shared_layers_have_one_kernel(stack: View, model: View, centred: bool) -> Iterator[Problem]:
    if stack.shared_layers is None or stack.kernel_sizes is None or len(stack.kernel_sizes) != stack.num_layers:
        return
    if len(stack.shared_layers) not in (1, stack.num_layers):
        return
    blocks = stack.shared_layers * (stack.num_layers if len(stack.shared_layers) == 1 else 1)
    sizes: dict[int, int] = {}
    for layer, (block, size) in enumerate(zip(blocks, stack.kernel_sizes, strict=True)):
        if sizes.setdefault(block, size) != size:
            yield stack.problem(
                "kernel_sizes",
                f"layer {layer} has kernel size {size}, but shares its block with a layer of kernel size "
                f"{sizes[block]}; give them one size or separate blocks",
            )


def _connections_have_their_norm(stack: View, model: View, centred: bool) -> Iterator[Problem]:
    if stack.connections == "rezero" and stack.norm != "none":
        yield stack.problem("norm", f'is "{stack.norm}", but rezero starts as the identity, without norms; use "none"')
    if stack.connections == "dense" and stack.norm != "pre":
        yield stack.problem("norm", f'is "{stack.norm}", but dense connections are those of pre-norm stacks; use "pre"')


def _dense_layers_all_run(stack: View, model: View, centred: bool) -> Iterator[Problem]:
    """Those who skip a layer have nothing of it to combine."""
    if stack.connections != "dense":
        return
    side = "encoder" if centred else "decoder"
    skipping = [name for name in ("exits", "word_depths") if getattr(model, name) is not None]
    if model.encoder is not None and model.decoder is not None and centred:
        skipping = []
    if model.latent is not None and side in model.latent.sides:
        skipping.append("latent")
    for name in skipping:
        yield stack.problem("connections", f"dense wants all layers to run, and {name} skips some; remove one of both")


def _learned_positions_are_limited(stack: View, model: View, centred: bool) -> Iterator[Problem]:
    if stack.positions == "learned" and stack.max_positions is None:
        yield stack.problem(
            "max_positions", "learned positions need a table of known length; give a number such as 1024"
        )


ModelCheck = Callable[[View], Iterator[Problem]]
StackCheck = Callable[[View, View, bool], Iterator[Problem]]

MODEL_CHECKS: tuple[ModelCheck, ...] = (
    _has_a_stack,
    _source_vocabulary_has_a_source,
    _tied_vocabularies_are_one,
    _tied_decoder_exists,
    _adaptive_serves_language_models,
    _bands_stand_alone,
    _token_types_serve_encoders,
    _sentence_order_serves_encoders,
    _cutoffs_are_below_the_vocabulary,
    _bands_divide_width,
    _exits_are_within_the_stack,
    _bands_have_one_head,
    _shared_norms_exist,
    _words_decide_in_encoders,
    gates_fit_the_model,
    structure_fits_the_model,
)
STACK_CHECKS: tuple[StackCheck, ...] = (
    _attention_heads_divide_width,
    _kernel_heads_divide_channels,
    _convolutions_have_kernels,
    _kernels_match_layers,
    _kernels_have_a_centre,
    *(partial(_option_serves_mixer, option) for option in SERVES),
    _attention_dropout_has_attention,
    _shared_dropconnect_drops,
    _renormalized_kernels_are_nonnegative,
    _shared_layers_match_layers,
    _shared_layers_have_one_kernel,
    _learned_positions_are_limited,
    groups_share_layers,
    distances_serve,
    kept_heads_fit,
    _connections_have_their_norm,
    _dense_layers_all_run,
)
