"""How the memories of layers that a token has skipped come to hold it, for later tokens that run deeper.

| fill | what stands in the memory of a skipped layer | when it is made |
|---|---|---|
| eager | what the layer writes of the state in which the token left | at once |
| deferred | the same | when a later token of the row runs the layer, for all missing columns at once |
| recompute | what it would have written, had the token run on | the same, or when too many are missing |

The first two give the same numbers: those of the masked executor. The third gives those of a model in which every
earlier token ran the whole stack.
"""

from abc import ABC, abstractmethod

import numpy as np

from depthwise.engine.decoder_state import DecoderState
from depthwise.engine.rows import Pending, Rows, on_device
from depthwise.engine.step_mixers import Late
from depthwise.errors import InputError
from depthwise.shapes import Float, Tensor

MAX_PENDING = 8
"""Columns that ``recompute`` leaves behind at most, unless told otherwise."""


class Fill(ABC):
    """Runs blocks for the newest column of some rows, and sees to it that what they read is there.

    ``num_run`` counts the tokens that ran a block, summed over blocks; ``num_filled`` counts apart what was done for
    columns that had left: as many writes, or as many runs of ``recompute``.
    """

    def __init__(self, state: DecoderState) -> None:
        self.state = state
        self.num_run = self.num_filled = 0

    @abstractmethod
    def run(self, layer: int, x: Float[Tensor, "R D"], rows: Rows) -> Float[Tensor, "R D"]:
        """The states of these rows after a block."""

    def finish(self, x: Float[Tensor, "B D"]) -> None:
        """The column is done; ``x`` are the states in which its tokens left."""
        state = self.state
        if state.states is not None:
            state.states.put(state.length, x)
        state.length += 1

    def _step(self, layer: int, x: Tensor, rows: Rows, late: Late | None = None) -> Tensor:
        """A block for the newest column alone; what comes late is only written."""
        state, column = self.state, self.state.length
        block, memory = state.blocks[layer], state.memories[layer]
        self.num_run += len(rows)
        rows.set(state.written[layer], column + 1)
        return block.run(
            x,
            lambda entered: block.mixer.step(memory, entered, rows, column, state.padding, late),
            state.source_of(layer),
            rows,
        )


class NoFill(Fill):
    """For decodings in which every token runs the same blocks."""

    def run(self, layer: int, x: Tensor, rows: Rows) -> Tensor:
        return self._step(layer, x, rows)


class _CopyFill(Fill):
    """Fills that write the states in which tokens left."""

    def _missing(self, layer: int, rows: Rows, end: int) -> Late | None:
        """What has to be written before somebody may read the columns before ``end`` of these rows."""
        state = self.state
        block, begins = state.blocks[layer], rows.get(state.written[layer])
        if len(rows) == 0 or begins.min() == end:
            return None
        rows.set(state.written[layer], end)
        if not block.mixer.folds and block.mixer.reach is not None:
            begins = np.maximum(begins, end - block.mixer.reach)
        counts = end - begins
        total = int(counts.sum())
        if total == 0:
            return None
        assert state.states is not None
        ends = counts.cumsum()
        columns = np.arange(total) - np.repeat(ends - counts, counts) + np.repeat(begins, counts)
        of_row, of_column = (on_device(places, state.device) for places in (np.repeat(rows.numbers, counts), columns))
        self.num_filled += total
        return Late(block.enter(state.states.at(of_row, of_column)), of_row, of_column)


class CopyEager(_CopyFill):
    """Every layer writes for every token, also for those that have left."""

    def run(self, layer: int, x: Tensor, rows: Rows) -> Tensor:
        return self._step(layer, x, rows)

    def finish(self, x: Tensor) -> None:
        super().finish(x)
        for layer in range(len(self.state.blocks)):
            behind = self.state.everybody.those(self.state.written[layer] < self.state.length)
            late = self._missing(layer, behind, self.state.length)
            if late is not None:
                self.state.blocks[layer].mixer.write(self.state.memories[layer], late)


class CopyDeferred(_CopyFill):
    """A layer writes for tokens that have left when it is next read; what is out of reach by then it never writes."""

    def run(self, layer: int, x: Tensor, rows: Rows) -> Tensor:
        return self._step(layer, x, rows, self._missing(layer, rows, self.state.length))


class Recompute(Fill):
    """Tokens that have left run on, together with the next one of their row that comes so deep.

    Whatever is missing of a row is run once ``max_pending`` columns are.
    """

    def __init__(self, state: DecoderState, max_pending: int = MAX_PENDING) -> None:
        super().__init__(state)
        self.max_pending = max_pending

    def run(self, layer: int, x: Tensor, rows: Rows) -> Tensor:
        state, column = self.state, self.state.length
        if rows.get(state.written[layer]).min() == column:
            return self._step(layer, x, rows)
        assert state.states is not None
        state.states.put(column, x, rows.selection)
        self.num_run += len(rows)
        return self._catch_up(layer, rows, column, num_own=1)

    def finish(self, x: Tensor) -> None:
        super().finish(x)
        written = self.state.written[-1]
        self.flush(self.state.everybody.those(self.state.length - written >= self.max_pending))

    def flush(self, rows: Rows) -> None:
        """Run all that is missing of these rows."""
        for layer in range(len(self.state.blocks)):
            behind = rows.those(self.state.written[layer, rows.numbers] < self.state.length)
            if len(behind):
                self._catch_up(layer, behind, self.state.length - 1)

    def _catch_up(self, layer: int, rows: Rows, column: int, num_own: int = 0) -> Float[Tensor, "R D"]:
        """Run a block for all columns up to this one that have not; returns the states of this one.

        The last ``num_own`` of them run it in their own time.
        """
        state = self.state
        block, memory = state.blocks[layer], state.memories[layer]
        pending = Pending(rows, rows.get(state.written[layer]), np.full(len(rows), column + 1))
        rows.set(state.written[layer], column + 1)
        self.num_filled += int(pending.counts.sum()) - num_own * len(rows)
        assert state.states is not None
        x = block.run(
            state.states.at(pending.of_row, pending.columns),
            lambda entered: block.mixer.chunk(memory, entered, pending, state.padding),
            state.source_of(layer),
            rows,
            pending,
        )
        state.states.put_at(pending.of_row, pending.columns, x)
        return x.index_select(0, pending.last)


FILLS: dict[str, type[Fill]] = {"eager": CopyEager, "deferred": CopyDeferred, "recompute": Recompute}


def check_fill(name: str, max_pending: int) -> None:
    if name not in FILLS:
        raise InputError(f'there is no fill "{name}"; use one of {", ".join(FILLS)}')
    if max_pending < 1:
        raise InputError(f"max_pending is {max_pending}; leave at least 1 column behind, or use no policy")
