"""Sources of rows that come and go: each stays as long as its row, and the room of those that left is used again."""

from dataclasses import dataclass

import numpy as np

from depthwise.engine.columns import Columns
from depthwise.engine.rows import on_device
from depthwise.engine.step_attention import FoldedSource, StepCross, mask_of
from depthwise.models.stack import Source
from depthwise.shapes import Bool, Float, Tensor


@dataclass(frozen=True)
class LiveSource:
    """What one layer sees of all sources (a ``SeenSource``)."""

    columns: Float[Tensor, "B S C"]
    mask: Float[Tensor, "B 1 1 S"] | None
    rows_each: int = 1
    folded: FoldedSource | None = None


class LiveSources:
    """States of the sources of all rows and, for layers that were asked for them, keys and values.

    Tables are as wide as the longest source so far; only as much of them is read as the longest one needs that is there
    now. ``source`` is what policies see. A layer writes what newcomers bring when somebody next runs it.
    """

    def __init__(self, like: Float[Tensor, "_b _t D"]) -> None:
        self.lengths = np.zeros(0, dtype=np.int64)
        self._states = Columns(like, 0, like.shape[-1])
        self._layers: dict[int, tuple[Columns, np.ndarray]] = {}
        self._refresh()

    def add(self, states: Float[Tensor, "M S D"], lengths: np.ndarray) -> None:
        """Sources of rows that come behind the last; each has so many steps, and what follows does not count."""
        longest, count = int(lengths.max()), len(lengths)
        self._states.make_room(longest)
        self._states.add_rows(count)
        self._states.last_rows(count).between(0, longest).copy_(states[:, :longest])
        self.lengths = np.concatenate([self.lengths, lengths])
        for layer, (columns, is_written) in self._layers.items():
            columns.make_room(longest)
            columns.add_rows(count)
            self._layers[layer] = columns, np.concatenate([is_written, np.zeros(count, dtype=bool)])
        self._refresh()

    def drop(self, order: np.ndarray) -> None:
        """Row b becomes what row ``order[b]`` was, which is no earlier one; others leave."""
        holes = np.flatnonzero(order != np.arange(len(order)))
        movers, targets = (on_device(rows, self._states.device) for rows in (order[holes], holes))
        for columns in (self._states, *(columns for columns, _ in self._layers.values())):
            if len(holes):
                columns.move(movers, targets)
            columns.num_rows = len(order)
        self._layers = {layer: (columns, written[order]) for layer, (columns, written) in self._layers.items()}
        self.lengths = self.lengths[order]
        self._refresh()

    def seen_by(self, layer: int, cross: StepCross) -> LiveSource:
        """What a layer sees, after it has written what it had not yet."""
        states = self.source.states
        if layer not in self._layers:
            written = cross.written(states)
            columns = Columns(states, len(states), written.shape[-1])
            columns.make_room(self._states.end)
            columns.between(0, self._longest).copy_(written)
            self._layers[layer] = columns, np.ones(len(states), dtype=bool)
        columns, is_written = self._layers[layer]
        if not is_written.all():
            missing, longest = on_device(np.flatnonzero(~is_written), states.device), self.lengths[~is_written].max()
            values = cross.written(states[:, :longest].index_select(0, missing))
            columns.between(0, longest).index_copy_(0, missing, values)
            is_written[:] = True
        return LiveSource(columns.between(0, self._longest), self._mask)

    def _refresh(self) -> None:
        """What follows from which sources are there."""
        self._longest = int(self.lengths.max(initial=0))
        states, valid = self._states.between(0, self._longest), self._valid()
        self.source = Source(states, valid)
        self._mask = None if valid is None else mask_of(valid, states.dtype)

    def _valid(self) -> Bool[Tensor, "B S"] | None:
        if (self.lengths == self._longest).all():
            return None
        return on_device(np.arange(self._longest) < self.lengths[:, None], self._states.device)
