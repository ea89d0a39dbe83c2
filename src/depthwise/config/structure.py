"""Layers that a model asks for by itself, as plain data: the section ``model.structure``.

``depthwise.depth.structure_predictor`` says what comes of it. The threshold below which no layer runs is an option of
the policy ``structure``, since it may change from one call to the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from depthwise.config.parsing import Rules, at_least, choice, finite
from depthwise.errors import Problem

if TYPE_CHECKING:
    from depthwise.config.checks import View

SUMMARIES = ("first", "first_tanh", "mean", "max")


@dataclass(frozen=True, kw_only=True)
class StructureConfig:
    """An encoder whose first layers always run and say how many of the others this input needs."""

    num_static: int
    """Layers that always run; what they have made of the input is looked at."""
    summary: str = "first"
    """What is looked at: the state of the ``first`` token, the same behind a dense layer and tanh (``first_tanh``), or
    the ``mean`` or ``max`` over all tokens."""
    normalized: bool = False
    """Whether a layer norm of its own comes before."""
    hidden_width: int | None = None
    """Of the layer between the state and the number of layers; none means the width of the model."""
    cumulative: bool = True
    """Whether the weight of a layer is the probability that it or a later one is the last (RevPC), or, for comparison,
    that it is the last itself."""
    allow_zero: bool = False
    """Whether none of the other layers may be needed. Else the first of them always is."""
    temperature: float = 1.0
    """What logits are divided by; greater means less certain."""
    last_bias: float = 0.0
    """Of the logit of the last layer in a new model; greater means that it begins by using all layers."""


RULES: Rules = {
    "num_static": partial(at_least, 1),
    "summary": partial(choice, SUMMARIES),
    "hidden_width": partial(at_least, 1),
    "last_bias": finite,
}
"""What each option demands by itself; that of ``temperature`` is the same as for latent layers."""


def structure_fits_the_model(model: "View") -> Iterator[Problem]:
    """There is an encoder whose branches can be weighed, with layers left to decide about."""
    if model.structure is None:
        return
    if model.encoder is None:
        yield model.problem("structure", "is that of an encoder, but there is none; add one, or remove it")
        return
    num_static, num_layers = model.structure.num_static, model.encoder.num_layers
    if num_static >= num_layers:
        message = f"{num_static} leaves none of {num_layers} layers to decide about; lower it, or add layers"
        yield model.structure.problem("num_static", message)
    elif num_static == num_layers - 1 and not model.structure.allow_zero:
        message = f"{num_static} leaves one of {num_layers} layers, which then always runs; lower it, or set allow_zero"
        yield model.structure.problem("num_static", message)
    if model.encoder.norm == "post":
        message = 'is "post", where branches cannot be weighed; use "pre" or "none" with structure'
        yield model.encoder.problem("norm", message)
    if model.encoder.connections == "dense":
        message = "dense wants all layers to run, and structure skips some; remove one of both"
        yield model.encoder.problem("connections", message)
    if model.latent is not None and "encoder" in model.latent.sides:
        yield model.problem("structure", "does not go with latent layers of the encoder; remove one")
    if model.word_depths is not None:
        yield model.problem("structure", "does not go with word_depths, which decide before the model runs; remove one")
    if model.exits is not None and model.decoder is None:
        yield model.problem("structure", "does not go with exits, which cut the same stack another way; remove one")


def groups_share_layers(stack: "View", model: "View", centred: bool) -> Iterator[Problem]:
    """Groups are one of two ways to say which layers share a block."""
    if stack.groups is None:
        return
    if stack.shared_layers is not None:
        yield stack.problem("groups", "and shared_layers both say which layers share a block; remove one")
    if stack.groups > stack.num_layers:
        message = f"{stack.groups} blocks are more than the {stack.num_layers} layers that would run them; lower it"
        yield stack.problem("groups", message)
    elif len(set(stack.kernel_sizes or ())) > 1:
        yield stack.problem("groups", "share kernels too; give one kernel size for all layers, or use shared_layers")
