"""Everything that a next step of decoding needs, changed in place."""

from collections.abc import Sequence

import numpy as np

from depthwise.engine.columns import Columns
from depthwise.engine.rows import Closing, Rows, each_row, on_device
from depthwise.engine.step_attention import SeenSource, SourceMemory, selected
from depthwise.engine.step_block import StepBlock
from depthwise.memory import Memory
from depthwise.models.stack import Source
from depthwise.shapes import Float, Int, Tensor


class DecoderState:
    """Memories of all layers after ``length`` columns of ``num_rows`` rows.

    Each of the sources serves ``rows_each`` neighbouring rows: the hypotheses of a beam. ``padding`` counts, for each
    row, the columns before its first token. ``states`` hold the state in which each column left the stack (or came so
    far), where columns may be missing from memories; ``written[n, b]`` then says how many columns of row b are in the
    memory of layer n. Missing ones are always the last: whoever runs a layer first completes it. With ``rewinds``,
    columns may be taken back: rows then have lengths of their own, and what stands behind ``written`` counts for
    nothing.
    """

    def __init__(
        self,
        blocks: list[StepBlock],
        like: Float[Tensor, "B _t D"],
        *,
        source: Source | None,
        rows_each: int = 1,
        padding: Int[Tensor, "B"] | None = None,
        keeps_states: bool = False,
        slack: int = 0,
        rewinds: bool = False,
    ) -> None:
        self.blocks, self.source, self.rows_each, self.padding = blocks, source, rows_each, padding
        self.length, self.num_rows, self.device = 0, len(like), like.device
        self.memories = [block.mixer.memory(like, self.num_rows, slack, rewinds=rewinds) for block in blocks]
        self.states = Columns(like, self.num_rows, like.shape[-1], self._reach(slack)) if keeps_states else None
        self.written = np.zeros((len(blocks), self.num_rows), dtype=np.int64)
        self._sources: dict[int, SourceMemory] = {}

    def _reach(self, slack: int) -> int | None:
        """How far back a state may still be asked for: as far as any layer looks."""
        reaches = [None if block.mixer.folds else block.mixer.reach for block in self.blocks]
        return None if None in reaches else max(reach for reach in reaches if reach is not None) + slack + 1

    @property
    def everybody(self) -> Rows:
        return Rows.every(self.num_rows, self.device)

    def begin_column(self) -> int:
        """Make room for the next column, and say which it is."""
        self.make_room(self.length + 1)
        return self.length

    def make_room(self, end: int) -> None:
        """Room for all columns before ``end``."""
        for memory in (*self.memories, *(() if self.states is None else (self.states,))):
            memory.make_room(end)

    def load(self, pasts: Sequence[Memory], length: int) -> None:
        """Take over what the masked executor remembers of the first ``length`` columns."""
        for block, memory, past in zip(self.blocks, self.memories, pasts, strict=True):
            memory.make_room(length)
            block.mixer.load(memory, past, length)
        if self.states is not None:
            self.states.make_room(length)
        self.length = length
        self.written[:] = length

    def source_of(self, layer: int) -> SeenSource | None:
        """The source as a layer sees it, written when it is first asked for."""
        cross = self.blocks[layer].cross
        if cross is None:
            return None
        if layer not in self._sources:
            assert self.source is not None
            self._sources[layer] = cross.remembered(self.source, self.rows_each)
        return self._sources[layer]

    def reorder(self, sources: np.ndarray) -> None:
        """Row b becomes what row ``sources[b]`` was, within those of one source."""
        targets = np.flatnonzero(sources != np.arange(self.num_rows))
        if len(targets):
            self._move(sources[targets], targets)

    def drop(self, leaves: np.ndarray) -> np.ndarray:
        """Sources and their rows leave where ``leaves`` is true. Returns the old numbers of those that are left."""
        order, movers, holes = Closing.after(leaves)
        if len(holes):
            self._move(each_row(movers, self.rows_each), each_row(holes, self.rows_each))
        for written in self._sources.values():
            written.drop(on_device(movers, self.device), on_device(holes, self.device), len(order))
        self.num_rows = len(order) * self.rows_each
        self.written = self.written[:, : self.num_rows]
        self.padding = None if self.padding is None else self.padding[: self.num_rows]
        for memory in (*self.memories, *(() if self.states is None else (self.states,))):
            memory.num_rows = self.num_rows
        if self.source is not None:
            self.source = selected(self.source, on_device(order, self.device))
        return order

    def _move(self, sources: np.ndarray, targets: np.ndarray) -> None:
        self.written[:, targets] = self.written[:, sources]
        from_rows, to_rows = (on_device(np.ascontiguousarray(rows), self.device) for rows in (sources, targets))
        for memory in (*self.memories, *(() if self.states is None else (self.states,))):
            memory.move(from_rows, to_rows)
        if self.padding is not None:
            self.padding = self.padding.index_copy(0, to_rows, self.padding.index_select(0, from_rows))
