"""Blocks of a decoder with weights ready for steps, and the source that they attend to."""

from collections.abc import Callable

import torch

from depthwise.engine.linear_maps import Packer
from depthwise.engine.rows import Rows
from depthwise.engine.step_mixers import SPREAD_FROM, attend_columns, step_mixer
from depthwise.mixers import CrossAttention
from depthwise.models.block import Block
from depthwise.models.stack import Source
from depthwise.shapes import Bool, Float, Int, Tensor

Mixed = Callable[[Tensor], Tensor]
"""What the mixer makes of the states that enter it."""


class StepBlock:
    """One block, gates aside: the sub-blocks in their residual frames."""

    def __init__(self, block: Block, pack: Packer) -> None:
        self.block, self.mixer = block, step_mixer(block.mixer, pack)
        self.cross = None if block.cross is None else StepCross(block.cross, pack)
        feed = block.feed_forward
        self.hidden, self.activation, self.out = pack(feed.hidden), feed.activation, pack(feed.out)

    def enter(self, x: Float[Tensor, "R P D"]) -> Float[Tensor, "R P D"]:
        """What the mixer sees of these states."""
        return self.block.mixer_residual.enter(x)

    def run(
        self, x: Float[Tensor, "R P D"], mixed: Mixed, source: "SourceMemory | None", rows: Rows
    ) -> Float[Tensor, "R P D"]:
        """The states after this block."""
        block = self.block
        x = block.mixer_residual.leave(x, mixed(self.enter(x)), None)
        if self.cross is not None:
            assert source is not None, "a block with attention over a source was given none"
            x = block.cross_residual.leave(x, self.cross.read(block.cross_residual.enter(x), source, rows), None)
        entered = block.feed_forward_residual.enter(x)
        return block.feed_forward_residual.leave(x, self.out(self.activation(self.hidden(entered))), None)


class StepCross:
    """Attention over the source; rows that belong to one source read the same memory."""

    def __init__(self, cross: CrossAttention, pack: Packer) -> None:
        project = cross.projections
        self.num_heads = project.num_heads
        self.query, self.keys_values, self.out = (
            pack(project.query),
            pack(project.key, project.value),
            pack(project.out),
        )

    def read(self, x: Float[Tensor, "R P D"], source: "SourceMemory", rows: Rows) -> Float[Tensor, "R P D"]:
        queries, shape = self.query(x), x.shape
        if rows.are_all:
            queries = queries.view(source.num_sources, -1, shape[-1])
            mixed = attend_columns(queries, source.columns, self.num_heads, source.valid)
        elif source.rows_each > 1 or len(rows) >= SPREAD_FROM * rows.num_all:
            everybody = queries.new_zeros(rows.num_all, *shape[1:]).index_copy_(0, rows.index, queries)
            everybody = everybody.view(source.num_sources, -1, shape[-1])
            mixed = attend_columns(everybody, source.columns, self.num_heads, source.valid)
            mixed = mixed.view(rows.num_all, *shape[1:]).index_select(0, rows.index)
        else:
            valid = None if source.valid is None else source.valid.index_select(0, rows.index)
            mixed = attend_columns(queries, source.columns.index_select(0, rows.index), self.num_heads, valid)
        return self.out(mixed.view(shape))


class SourceMemory:
    """Keys and values of the source for one layer, one after the other in columns; each source serves some rows."""

    def __init__(self, cross: StepCross, source: Source, rows_each: int) -> None:
        self.columns: Float[Tensor, "G S C"] = cross.keys_values(source.states)
        self.valid: Bool[Tensor, "G S"] | None = source.valid
        self.rows_each = rows_each

    @property
    def num_sources(self) -> int:
        return len(self.columns)

    def drop(self, movers: Int[Tensor, "M"], holes: Int[Tensor, "M"], num_left: int) -> None:
        """Sources ``movers`` take the places ``holes``; then only the first ones are left."""
        self.columns.index_copy_(0, holes, self.columns.index_select(0, movers))
        self.columns = self.columns[:num_left]
        if self.valid is not None:
            self.valid = self.valid.index_copy(0, holes, self.valid.index_select(0, movers))[:num_left]


def selected(source: Source, order: Tensor) -> Source:
    """Only these sources, in this order."""
    valid = None if source.valid is None else source.valid.index_select(0, order)
    return Source(source.states.index_select(0, order), valid)


def without_needless_mask(states: Tensor, valid: Tensor | None) -> Source:
    """A source whose mask is left out if there is no padding. Waits for the device once."""
    if valid is None or bool(valid.all()):
        return Source(states, None)
    return Source(states, valid.to(torch.bool))
