"""Everything that a next step of recorded decoding needs: what ``DecoderState`` is to steps that Python runs."""

from collections.abc import Hashable, Sequence

import numpy as np

from depthwise.depth import Policy
from depthwise.engine.prepared import Prepared
from depthwise.engine.recorded_encoder import RecordedEncoder
from depthwise.engine.recorder import Recorder, Work
from depthwise.engine.rows import Closing, Rows, each_row, on_device
from depthwise.engine.static_exits import Asked, Exits
from depthwise.engine.static_layout import Layout, Size, Tables
from depthwise.engine.static_rounds import Rounds
from depthwise.engine.static_tables import Arena, rounded_up
from depthwise.engine.step_attention import selected
from depthwise.memory import Memory
from depthwise.models.stack import Source
from depthwise.shapes import Int, Tensor

LEAST_CAPACITY, LEAST_SOURCE = 64, 32
"""Columns and steps of a source that tables have room for at least."""


class Recording:
    """What is kept of recorded decoding from one text to the next: tables, and the work that was recorded on them."""

    def __init__(self, prepared: Prepared, recorder: Recorder) -> None:
        self.prepared, self.recorder = prepared, recorder
        weight = next(prepared.decoder.stack.parameters())
        self.arena = Arena(weight.new_empty(1, prepared.model.config.width))
        encoder = prepared.model.model.encoder
        self.encoder = None if encoder is None else RecordedEncoder(encoder, self.arena, recorder)
        self._layouts: dict[Size, Tables] = {}
        self._most_sources: dict[int, int] = {}
        self._asked: Asked | None = None
        self._exits: dict[Size, Exits] = {}

    def layout(
        self,
        num_rows: int,
        rows_each: int,
        columns: int,
        source_length: int,
        keeps_states: bool,
        num_drafted: int | None,
    ) -> Tables:
        """Tables with room for this. Smaller batches use those of larger ones, so that less has to be recorded."""
        most = max(rounded_up(num_rows // rows_each), self._most_sources.get(rows_each, 0))
        self._most_sources[rows_each] = most
        length = rounded_up(source_length, LEAST_SOURCE)
        size = Size(most, rows_each, rounded_up(columns, LEAST_CAPACITY), length, keeps_states, num_drafted)
        if size not in self._layouts:
            moves = self.arena.num_moves
            made = (Layout if num_drafted is None else Rounds)(self.prepared, self.arena, size)
            if self.arena.num_moves > moves:
                self._layouts.clear()
                self._exits.clear()
                self.recorder.forget()
            self._layouts[size] = made
        return self._layouts[size]

    def asked(self, policy: Policy) -> Asked:
        """The policy, of which nothing that was recorded holds once it has changed."""
        if self._asked is None or not self._asked.is_current(policy):
            self._asked = Asked(policy)
            self._exits.clear()
        return self._asked

    def exits(self, layout: Layout, asked: Asked) -> Exits:
        if layout.size not in self._exits:
            self._exits[layout.size] = Exits(layout, asked.policy)
        return self._exits[layout.size]


class StaticState:
    """Memories of all layers after ``length`` columns of ``num_rows`` rows, in the tables of a ``Recording``.

    Names mean what they mean in ``DecoderState``. Work is done for a power of two of sources: rows behind the last one
    are computed too, and nobody looks at them. With ``num_drafted``, it is that of rounds: rows then have lengths of
    their own, of which ``length`` is the most that the longest may have.
    """

    def __init__(
        self,
        recording: Recording,
        num_rows: int,
        *,
        source: Source | None,
        rows_each: int = 1,
        padding: Int[Tensor, "B"] | None = None,
        keeps_states: bool = False,
        length: int = 0,
        num_drafted: int | None = None,
    ) -> None:
        self.recording, self.recorder = recording, recording.recorder
        self.source, self.rows_each, self.keeps_states = source, rows_each, keeps_states
        self.length, self.num_rows, self.padding = length, num_rows, padding
        self.num_drafted = num_drafted
        self.blocks, self.device = recording.prepared.blocks, recording.arena.like.device
        self.written = np.full((len(self.blocks), num_rows), length, dtype=np.int64)
        self._source_length = 0 if source is None else source.states.shape[1]
        self._seen_by: set[int] = set()
        self.layout = self._layout()
        self._begin()

    def _layout(self) -> Tables:
        return self.recording.layout(
            self.num_rows,
            self.rows_each,
            self.num_columns,
            self._source_length,
            self.keeps_states,
            self.num_drafted,
        )

    @property
    def num_columns(self) -> int:
        """How many columns there are after the next step, or the next round if all of its drafts are right."""
        return self.length + 1 + (self.num_drafted or 0)

    def _begin(self) -> None:
        layout, num_rows = self.layout, self.bucket
        length, padding = self.length, self.padding

        def begin() -> None:
            layout.start(num_rows, length, padding)

        if length or padding is not None:  # a prompt is as long as tensors in between
            begin()
        else:
            self.do("nothing yet", begin)
        if self.source is None:
            return
        states, valid = self.source.states, self.source.valid
        (count, num_steps), bucket = states.shape[:2], num_rows // self.rows_each
        layout.source_states[:bucket].zero_()[:count, :num_steps] = states
        mask = layout.source_mask[:bucket].fill_(-np.inf)
        mask[:, :num_steps] = 0
        if valid is not None:
            mask[:count, :num_steps].masked_fill_(~valid, -np.inf)

    @property
    def bucket(self) -> int:
        """The number of rows that work is done for."""
        return rounded_up(self.num_rows // self.rows_each) * self.rows_each

    @property
    def everybody(self) -> Rows:
        return Rows.every(self.num_rows, self.device)

    def do(self, key: Hashable, work: Work) -> None:
        """Do what is known by this key for tables of this size and the rows that there are."""
        self.recorder((self.layout.size, self.bucket, key), work)

    def begin_column(self) -> int:
        """Make room for the next column, and those that are drafted behind it, and say which it is."""
        if not self.has_room:
            self._grow()
        return self.length

    @property
    def has_room(self) -> bool:
        """Whether tables have room for the next columns."""
        return self.num_columns <= self.layout.size.capacity

    def _grow(self) -> None:
        """Move to tables with room for more columns; all that there are stay in their places."""
        smaller, self.layout = self.layout, self._layout()
        self.layout.take_over(smaller, self.bucket)

    def load(self, pasts: Sequence[Memory]) -> None:
        """Take over what the masked executor remembers of the columns so far."""
        self.layout.load(self.num_rows, pasts, self.length)

    def show_source(self, layers: Sequence[int]) -> None:
        """Write what these layers see of sources, unless they have seen them already."""
        new = tuple(layer for layer in layers if layer in self.layout.sources and layer not in self._seen_by)
        if not new:
            return
        self._seen_by.update(new)
        layout, count = self.layout, self.bucket // self.rows_each

        def work() -> None:
            for layer in new:
                layout.write_source(layer, count)

        self.do(("source", new), work)

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
            if self.source is not None:
                self._copy(movers, holes, self.layout.size.num_sources, tuple(sorted(self._seen_by)))
        self.num_rows = len(order) * self.rows_each
        self.written = self.written[:, : self.num_rows]
        self.padding = None if self.padding is None else self.padding[: self.num_rows]
        if self.source is not None and self.keeps_states:
            self.source = selected(self.source, on_device(order, self.device))
        return order

    def _move(self, sources: np.ndarray, targets: np.ndarray) -> None:
        self.written[:, targets] = self.written[:, sources]
        self._copy(sources, targets, self.layout.size.num_rows)
        if self.padding is not None:
            from_rows, to_rows = (on_device(np.ascontiguousarray(rows), self.device) for rows in (sources, targets))
            self.padding = self.padding.index_copy(0, to_rows, self.padding.index_select(0, from_rows))

    def _copy(
        self, sources: np.ndarray, targets: np.ndarray, nobody: int, seen_by: tuple[int, ...] | None = None
    ) -> None:
        """Copy rows of all tables, or sources in those of layers that have seen them."""
        layout, count = self.layout, min(rounded_up(len(sources)), nobody)
        moves = np.full((2, count), nobody)
        moves[:, : len(sources)] = sources, targets
        layout.moves[:, :count] = on_device(moves, self.device)

        def work() -> None:
            from_rows, to_rows = layout.moves[:, :count]
            tables = (table for table, _ in layout.by_row()) if seen_by is None else layout.by_source(seen_by)
            for table in tables:
                table.index_copy_(0, to_rows, table.index_select(0, from_rows))

        self.do(("copy", count, seen_by), work)
