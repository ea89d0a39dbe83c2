"""The state of a decoding whose rows come and go."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from depthwise.engine.decoder_state import DecoderState
from depthwise.engine.live_sources import LiveSources
from depthwise.engine.rows import on_device
from depthwise.engine.step_attention import SeenSource
from depthwise.engine.step_block import StepBlock
from depthwise.memory import Memory
from depthwise.models.stack import Source
from depthwise.shapes import Float, Tensor


@dataclass(frozen=True)
class Arrivals:
    """Rows that join: what each has behind it, and its source.

    ``lengths`` counts the columns of each row before its newest token; ``earlier`` is what these left behind, padded
    left, and empty where no row has any. Sources are padded right, with their lengths.
    """

    lengths: np.ndarray
    earlier: Sequence[Memory] = ()
    source: Float[Tensor, "M S D"] | None = None
    source_lengths: np.ndarray | None = None

    def those(self, wanted: np.ndarray, device: torch.device) -> "Arrivals":
        """Some of these rows, with no more columns than they have."""
        lengths, index = self.lengths[wanted], on_device(wanted, device)
        if self.source is not None:
            assert self.source_lengths is not None
            return Arrivals(lengths, (), self.source.index_select(0, index), self.source_lengths[wanted])
        width = int(lengths.max())
        return Arrivals(lengths, [past.keep(index).recent(width) for past in self.earlier] if width else ())


class LiveState(DecoderState):
    """Memories of rows of which each began at a column of its own.

    The newest column is that of all rows, so that a step is the same work as in a batch that began together; what lies
    before the beginning of a row is padding. Columns are counted from the beginning of the oldest row: when it leaves,
    the others are counted anew and what only it could see makes room. So there are never more columns than the longest
    row has tokens.
    """

    def __init__(self, blocks: list[StepBlock], like: Float[Tensor, "_b _t D"], *, slack: int = 0) -> None:
        super().__init__(blocks, like[:0], source=None, keeps_states=True, slack=slack)
        self._starts = np.zeros(0, dtype=np.int64)
        self._live = LiveSources(like) if blocks[0].cross is not None else None

    @property
    def lengths(self) -> np.ndarray:
        """How many columns of each row there are."""
        lengths: np.ndarray = self.length - self._starts
        return lengths

    def add(self, arrivals: Arrivals) -> None:
        """Rows come behind the last ones."""
        count, width = len(arrivals.lengths), int(arrivals.lengths.max())
        if width > self.length:
            self._shift(width - self.length)
        assert self.states is not None
        for memory in (*self.memories, self.states):
            memory.add_rows(count)
        self.num_rows += count
        self.written = np.concatenate([self.written, np.full((len(self.blocks), count), self.length)], axis=1)
        self._starts = np.concatenate([self._starts, self.length - arrivals.lengths])
        if arrivals.earlier:
            for block, memory, past in zip(self.blocks, self.memories, arrivals.earlier, strict=True):
                block.mixer.load(memory.last_rows(count), past, self.length)
        if self._live is not None:
            assert arrivals.source is not None
            assert arrivals.source_lengths is not None
            self._live.add(arrivals.source, arrivals.source_lengths)
        self._rows_have_changed()

    def drop(self, leaves: np.ndarray) -> np.ndarray:
        """Rows leave where ``leaves`` is true. Returns the old numbers of those that are left."""
        self.source = self.padding = None  # both are made anew
        order = super().drop(leaves)
        self._starts = self._starts[order]
        if self._live is not None:
            self._live.drop(order)
        self._shift(-int(self._starts.min(initial=self.length)))
        self._rows_have_changed()
        return order

    def source_of(self, layer: int) -> SeenSource | None:
        cross = self.blocks[layer].cross
        if cross is None:
            return None
        assert self._live is not None
        return self._live.seen_by(layer, cross)

    def _shift(self, by: int) -> None:
        """Count columns anew: column c becomes column c + ``by``."""
        if by == 0:
            return
        assert self.states is not None
        for memory in (*self.memories, self.states):
            memory.shift(by)
        self.length += by
        self.written += by
        self._starts += by

    def _rows_have_changed(self) -> None:
        self.padding = on_device(self._starts.copy(), self.device)
        self.source: Source | None = None if self._live is None else self._live.source
