"""Blocks of a decoder with weights ready for steps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from depthwise.engine.linear_maps import Packer
from depthwise.engine.rows import Pending, Rows
from depthwise.engine.step_attention import AttentionStep, SeenSource, StepCross
from depthwise.engine.step_mixers import AverageStep, ConvolutionStep, FullConvolutionStep, StepMixer
from depthwise.kernels.residual_norm import normalized_sum
from depthwise.mixers import CNN, AverageAttention, Mixer, SelfAttention
from depthwise.mixers.projected import ProjectedConv
from depthwise.models.block import Block, Residual
from depthwise.shapes import Float, Tensor

Mixed = Callable[[Tensor], Tensor]
"""What the mixer, or attention over a source, makes of the states that enter it."""


class Frame:
    """The residual frame of a sub-block in inference: what ``Residual`` does, without gates and dropout.

    A ``scale`` multiplies the branch, as a gate that never changes would.
    """

    def __init__(self, residual: Residual, scale: Tensor | None = None) -> None:
        norm, self.scale = residual.norm, scale
        self.is_pre = norm is not None and residual.placement == "pre"
        self.is_post = norm is not None and residual.placement == "post"
        if norm is not None:
            self.weight, self.bias, self.epsilon = norm.weight, norm.bias, norm.eps
            self.norm = partial(
                torch.layer_norm,
                normalized_shape=norm.normalized_shape,
                weight=norm.weight,
                bias=norm.bias,
                eps=norm.eps,
            )

    def enter(self, x: Float[Tensor, "M D"]) -> Float[Tensor, "M D"]:
        return self.norm(x) if self.is_pre else x

    def leave(
        self, x: Float[Tensor, "M D"], branch: Float[Tensor, "M D"], *, is_recorded: bool = False
    ) -> Float[Tensor, "M D"]:
        branch = branch if self.scale is None else branch * self.scale
        if self.is_post and is_recorded:
            return normalized_sum(x, branch, self.weight, self.bias, epsilon=self.epsilon)
        return self.norm(x + branch) if self.is_post else x + branch


class StepBlock:
    """One block: its sub-blocks, each in its frame."""

    def __init__(self, block: Block, pack: Packer) -> None:
        self.mixer, self.mixer_frame = step_mixer(block.mixer, pack), Frame(block.mixer_residual, block.scale)
        self.cross: StepCross | None = None
        if block.cross is not None:
            self.cross, self.cross_frame = StepCross(block.cross, pack), Frame(block.cross_residual, block.scale)
        feed, self.feed_frame = block.feed_forward, Frame(block.feed_forward_residual, block.scale)
        self.hidden, self.out = pack(feed.hidden), pack(feed.out)
        self.activation = torch.relu_ if feed.activation is F.relu else feed.activation

    def enter(self, x: Float[Tensor, "M D"]) -> Float[Tensor, "M D"]:
        """What the mixer sees of these states."""
        return self.mixer_frame.enter(x)

    def run(
        self,
        x: Float[Tensor, "M D"],
        mixed: Mixed,
        source: SeenSource | None,
        rows: Rows,
        pending: Pending | None = None,
    ) -> Float[Tensor, "M D"]:
        """The states after this block: of one column of these rows, or of all that are pending."""

        def crossed(entered: Tensor) -> Tensor:
            assert self.cross is not None
            assert source is not None, "a block with attention over a source was given none"
            return self.cross.read(entered, source, rows, pending)

        return self.through(x, mixed, crossed)

    def through(
        self, x: Float[Tensor, "M D"], mixed: Mixed, crossed: Mixed, *, is_recorded: bool = False
    ) -> Float[Tensor, "M D"]:
        """The states after this block, given what becomes of those that enter its mixer and see the source.

        Where this ``is_recorded``, fewer kernels are worth the longer time that Python takes to launch them.
        """
        x = self.mixer_frame.leave(x, mixed(self.enter(x)), is_recorded=is_recorded)
        if self.cross is not None:
            x = self.cross_frame.leave(x, crossed(self.cross_frame.enter(x)), is_recorded=is_recorded)
        fed = self.out(self.activation(self.hidden(self.feed_frame.enter(x))))
        return self.feed_frame.leave(x, fed, is_recorded=is_recorded)


def step_mixer(mixer: Mixer, pack: Packer) -> StepMixer[Any]:
    """A mixer, ready for steps."""
    if isinstance(mixer, SelfAttention):
        return AttentionStep(mixer, pack)
    if isinstance(mixer, AverageAttention):
        return AverageStep(mixer, pack)
    if isinstance(mixer, CNN):
        return FullConvolutionStep(mixer, pack)
    assert isinstance(mixer, ProjectedConv), f"{type(mixer).__name__} has no steps"
    return ConvolutionStep(mixer, pack)
