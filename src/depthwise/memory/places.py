"""Tokens of several sequences in one long row, without padding, and which of them read."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn import functional as F

from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Places:
    """Where N tokens stand: ``rows`` numbers their sequences from 0 without a gap, and tokens of the same one lie side
    by side in their order. ``readers`` lists those whose next states are asked for, in order; none means all.

    All of it is kept by the host, which knows the sizes of things without asking a device; ``device`` is where the
    indices that follow from it are wanted.
    """

    rows: Int[Tensor, "N"]
    readers: Int[Tensor, "A"] | None
    device: torch.device

    @property
    def num_readers(self) -> int:
        return len(self.rows if self.readers is None else self.readers)

    @cached_property
    def lengths(self) -> Int[Tensor, "R"]:
        return self.rows.bincount()

    @cached_property
    def _reader_rows(self) -> Int[Tensor, "A"]:
        return self.rows if self.readers is None else self.rows[self.readers]

    @cached_property
    def _readers_there(self) -> Int[Tensor, "A"] | None:
        return None if self.readers is None else self._sent(self.readers)

    def _sent(self, index: Tensor) -> Tensor:
        return index.to(self.device, non_blocking=True)

    def taken(self, x: Float[Tensor, "1 N D"]) -> Float[Tensor, "1 A D"]:
        """The states of those who read."""
        return x if self._readers_there is None else x.index_select(1, self._readers_there)

    # One row for each sequence, padded at the end: what attention and averages need

    @cached_property
    def _token_slots(self) -> Int[Tensor, "N"]:
        return self._sent(self.rows * self._longest + self._ranks(self.rows))

    @cached_property
    def _reader_slots(self) -> Int[Tensor, "A"]:
        return self._sent(self._reader_rows * self._most_readers + self._ranks(self._reader_rows))

    @cached_property
    def _longest(self) -> int:
        return int(self.lengths.max())

    @cached_property
    def _most_readers(self) -> int:
        return int(self._reader_rows.bincount().max())

    @staticmethod
    def _ranks(rows: Int[Tensor, "A"]) -> Int[Tensor, "A"]:
        """Which one of its row each is, from 0."""
        counts = rows.bincount()
        return torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]

    @cached_property
    def valid(self) -> Bool[Tensor, "R T"] | None:
        """Which places of ``grid`` are taken; none means all."""
        if bool((self.lengths == self._longest).all()):
            return None
        return self._sent(torch.arange(self._longest) < self.lengths.unsqueeze(1))

    @cached_property
    def positions(self) -> Int[Tensor, "R P"]:
        """Where in its row of ``grid`` each reader of ``reader_grid`` stands; 0 where there is none."""
        ranks = self._ranks(self.rows)
        ranks = ranks if self.readers is None else ranks[self.readers]
        grid = torch.zeros(len(self.lengths) * self._most_readers, dtype=torch.long)
        slots = self._reader_rows * self._most_readers + self._ranks(self._reader_rows)
        return self._sent(grid.index_copy(0, slots, ranks).view(-1, self._most_readers))

    def grid(self, x: Float[Tensor, "1 N D"]) -> Float[Tensor, "R T D"]:
        """States of all tokens, zeros behind the end of a sequence."""
        return _spread(x, self._token_slots, len(self.lengths), self._longest)

    def padded(self, x: Float[Tensor, "1 N D"], width: int) -> tuple[Float[Tensor, "R W D"], Bool[Tensor, "R W"]]:
        """The same with so many places in every row, and which of them are taken."""
        valid = self._sent(torch.arange(width) < self.lengths.unsqueeze(1))
        return F.pad(self.grid(x), (0, 0, 0, width - self._longest)), valid

    def reader_grid(self, x: Float[Tensor, "1 A D"]) -> Float[Tensor, "R P D"]:
        """States of the readers of each sequence."""
        return _spread(x, self._reader_slots, len(self.lengths), self._most_readers)

    def from_reader_grid(self, grid: Float[Tensor, "R P D"]) -> Float[Tensor, "1 A D"]:
        """The way back."""
        if grid.shape[0] * grid.shape[1] == self.num_readers:
            return grid.reshape(1, self.num_readers, -1)
        return grid.flatten(0, 1).index_select(0, self._reader_slots).unsqueeze(0)

    # One long row with room between sequences: what convolutions need

    def spaced(self, x: Float[Tensor, "1 N C"], room: int) -> Float[Tensor, "1 M C"]:
        """Tokens with at least ``room`` zeros between sequences, so that none sees another's."""
        if len(self.lengths) == 1:
            return x
        row = x.new_zeros(1, self._num_spaced(room), x.shape[-1])
        return row.index_copy_(1, self._sent(self._spaced_slots(room)), x)

    def spaced_readers(self, room: int) -> Int[Tensor, "1 A"]:
        """Where readers stand in a ``spaced`` row."""
        slots = self._spaced_slots(room)
        return self._sent(slots if self.readers is None else slots[self.readers]).unsqueeze(0)

    def spaced_valid(self, room: int) -> Bool[Tensor, "1 M"]:
        """Which places of a ``spaced`` row are taken."""
        valid = torch.zeros(self._num_spaced(room), dtype=torch.bool)
        return self._sent(valid.index_fill(0, self._spaced_slots(room), True)).unsqueeze(0)

    def _spaced_slots(self, room: int) -> Int[Tensor, "N"]:
        return torch.arange(len(self.rows)) + self.rows * room

    def _num_spaced(self, room: int) -> int:
        return len(self.rows) + (len(self.lengths) - 1) * room


def _spread(x: Float[Tensor, "1 N D"], slots: Int[Tensor, "N"], num_rows: int, length: int) -> Tensor:
    if num_rows * length == x.shape[1]:
        return x.view(num_rows, length, -1)
    spread = x.new_zeros(num_rows * length, x.shape[-1]).index_copy_(0, slots, x[0])
    return spread.view(num_rows, length, -1)
