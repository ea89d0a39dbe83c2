"""Blocks of a decoder with weights ready for steps, and the source that they attend to."""

from collections.abc import Callable
from functools import partial

import torch

from depthwise.engine.linear_maps import Packer
from depthwise.engine.rows import Rows
from depthwise.engine.step_mixers import SPREAD_FROM, attend_columns, mask_of, step_mixer
from depthwise.mixers import CrossAttention
from depthwise.models.block import Block, Residual
from depthwise.models.stack import Source
from depthwise.shapes import Float, Int, Tensor

Mixed = Callable[[Tensor], Tensor]
"""What the mixer makes of the states that enter it."""


class Frame:
    """The residual frame of a sub-block in inference: what ``Residual`` does, without gates and dropout."""

    def __init__(self, residual: Residual) -> None:
        norm = residual.norm
        self.is_pre = norm is not None and residual.placement == "pre"
        self.is_post = norm is not None and residual.placement == "post"
        if norm is not None:
            self.norm = partial(
                torch.layer_norm,
                normalized_shape=norm.normalized_shape,
                weight=norm.weight,
                bias=norm.bias,
                eps=norm.eps,
            )

    def enter(self, x: Float[Tensor, "R P D"]) -> Float[Tensor, "R P D"]:
        return self.norm(x) if self.is_pre else x

    def leave(self, x: Float[Tensor, "R P D"], branch: Float[Tensor, "R P D"]) -> Float[Tensor, "R P D"]:
        return self.norm(x + branch) if self.is_post else x + branch


class StepBlock:
    """One block: its sub-blocks, each in its frame."""

    def __init__(self, block: Block, pack: Packer) -> None:
        self.mixer, self.mixer_frame = step_mixer(block.mixer, pack), Frame(block.mixer_residual)
        self.cross: StepCross | None = None
        if block.cross is not None:
            self.cross, self.cross_frame = StepCross(block.cross, pack), Frame(block.cross_residual)
        feed, self.feed_frame = block.feed_forward, Frame(block.feed_forward_residual)
        self.hidden, self.activation, self.out = pack(feed.hidden), feed.activation, pack(feed.out)

    def enter(self, x: Float[Tensor, "R P D"]) -> Float[Tensor, "R P D"]:
        """What the mixer sees of these states."""
        return self.mixer_frame.enter(x)

    def run(
        self, x: Float[Tensor, "R P D"], mixed: Mixed, source: "SourceMemory | None", rows: Rows
    ) -> Float[Tensor, "R P D"]:
        """The states after this block."""
        x = self.mixer_frame.leave(x, mixed(self.enter(x)))
        if self.cross is not None:
            assert source is not None, "a block with attention over a source was given none"
            x = self.cross_frame.leave(x, self.cross.read(self.cross_frame.enter(x), source, rows))
        return self.feed_frame.leave(x, self.out(self.activation(self.hidden(self.feed_frame.enter(x)))))


class StepCross:
    """Attention over the source; rows that belong to one source read the same memory."""

    def __init__(self, cross: CrossAttention, pack: Packer) -> None:
        project = cross.projections
        self.num_heads = project.num_heads
        self.query, self.out = pack(project.query), pack(project.out)
        self.key, self.value = project.key, project.value

    def written(self, states: Float[Tensor, "G S D"]) -> Float[Tensor, "G S C"]:
        """Keys and values of the source side by side."""
        return torch.cat([self.key(states), self.value(states)], dim=-1)

    def read(self, x: Float[Tensor, "R P D"], source: "SourceMemory", rows: Rows) -> Float[Tensor, "R P D"]:
        queries, shape = self.query(x), x.shape
        if rows.are_all:
            queries = queries.view(source.num_sources, -1, shape[-1])
            mixed = attend_columns(queries, source.columns, self.num_heads, source.mask)
        elif source.rows_each > 1 or len(rows) >= SPREAD_FROM * rows.num_all:
            everybody = queries.new_zeros(rows.num_all, *shape[1:]).index_copy_(0, rows.index, queries)
            everybody = everybody.view(source.num_sources, -1, shape[-1])
            mixed = attend_columns(everybody, source.columns, self.num_heads, source.mask)
            mixed = mixed.view(rows.num_all, *shape[1:]).index_select(0, rows.index)
        else:
            mask = None if source.mask is None else source.mask.index_select(0, rows.index)
            mixed = attend_columns(queries, source.columns.index_select(0, rows.index), self.num_heads, mask)
        return self.out(mixed.view(shape))


class SourceMemory:
    """Keys and values of the source for one layer, side by side in columns; each source serves some rows."""

    def __init__(self, cross: StepCross, source: Source, rows_each: int) -> None:
        self.columns: Float[Tensor, "G S C"] = cross.written(source.states)
        self.mask = None if source.valid is None else mask_of(source.valid, self.columns.dtype)
        self.rows_each = rows_each

    @property
    def num_sources(self) -> int:
        return len(self.columns)

    def drop(self, movers: Int[Tensor, "M"], holes: Int[Tensor, "M"], num_left: int) -> None:
        """Sources ``movers`` take the places ``holes``; then only the first ones are left."""
        for part in (self.columns, self.mask):
            if part is not None:
                part.index_copy_(0, holes, part.index_select(0, movers))
        self.columns = self.columns[:num_left]
        self.mask = None if self.mask is None else self.mask[:num_left]


def selected(source: Source, order: Tensor) -> Source:
    """Only these sources, in this order."""
    valid = None if source.valid is None else source.valid.index_select(0, order)
    return Source(source.states.index_select(0, order), valid)
