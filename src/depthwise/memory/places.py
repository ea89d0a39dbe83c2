"""Tokens of several sequences in one long row, without padding, and which of them read.

All of it is kept by the host, which knows the sizes of things without asking a device, as arrays of NumPy: they are
small, and what counts is the time of a call. Indices that follow from them are sent to the device where they are used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from depthwise.memory.sending import sent, sent_together
from depthwise.shapes import Bool, Float, Int, Tensor

Index = npt.NDArray[np.int64]
"""Numbers of tokens, or of sequences, on the host."""
SEEN_OFTEN = 3
"""Where readers see this many times as many tokens as there are, hardly any is seen by nobody."""
FEW_ELSEWHERE = 16_384
"""Up to so many tokens another device than a CPU has dealt with all before the host knows who is seen."""
WORTH_NARROWING = 0.9
"""Of all tokens, how many at most may be seen by somebody for it to be worth leaving out the others."""


@dataclass(frozen=True, eq=False)
class Around:
    """Windows of all tokens, in tables on the device: ``left`` tokens before each, itself and those after it."""

    seen: Int[Tensor, "N W"]
    is_there: Bool[Tensor, "N W"]
    left: int

    def look(self, segments: Int[Tensor, "1 N"]) -> None:
        """Fill the tables, for sequences with these numbers."""
        (count, width), rows = self.seen.shape, segments[0]
        tokens = torch.arange(count, device=rows.device).unsqueeze(1)
        wanted = tokens + torch.arange(-self.left, width - self.left, device=rows.device)
        self.seen.copy_(wanted.clamp(0, count - 1))
        self.is_there.copy_((rows[self.seen] == rows.unsqueeze(1)) & (self.seen == wanted))

    def of(self, readers: Int[Tensor, "A"], left: int, right: int) -> tuple[Int[Tensor, "A K"], Bool[Tensor, "A K"]]:
        """The narrower windows of some, as by ``Places.windows``."""
        columns = slice(self.left - left, self.left + right + 1)
        return self.seen[:, columns].index_select(0, readers), self.is_there[:, columns].index_select(0, readers)


@dataclass(frozen=True, eq=False)
class Sequences:
    """Where N tokens stand: ``rows`` numbers their sequences from 0 without a gap, and tokens of the same one lie side
    by side in their order. Worth keeping from block to block, as long as the tokens are the same.

    With ``are_tabled`` the host knows sizes alone: what follows from the numbers was put in its place (``tabled``).
    """

    rows: Index
    device: torch.device
    are_tabled: bool = False

    @classmethod
    def of(cls, rows: Index, device: torch.device) -> "Sequences":
        """The same of rows whose numbers may have gaps."""
        return cls(np.cumsum(np.diff(rows, prepend=rows[:1]) != 0), device)

    @classmethod
    def tabled(
        cls,
        segments: Int[Tensor, "1 N"],
        grid: tuple[int, int] | None = None,
        slots: Int[Tensor, "N"] | None = None,
        valid: Bool[Tensor, "R T"] | None = None,
        around: Around | None = None,
    ) -> "Sequences":
        """Sequences whose numbers stand on the device alone, in tables that others fill: what is computed with them is
        the same whatever those hold. Without a grid (rows and steps), there are only segments; tokens that lie as in
        the grid, every place taken, have neither slots nor a mask.
        """
        made = cls(np.empty(segments.shape[1], dtype=np.int64), segments.device, are_tabled=True)
        vars(made).update(segments=segments, around=around)
        if grid is not None:
            num_rows, longest = grid
            known = {"lengths": np.empty(num_rows, dtype=np.int64), "longest": longest, "slots": slots, "valid": valid}
            vars(made).update(known)
        return made

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def lengths(self) -> Index:
        return np.bincount(self.rows)

    @cached_property
    def longest(self) -> int:
        return int(self.lengths.max())

    @cached_property
    def starts(self) -> Index:
        """The first token of every sequence."""
        return _starts(self.lengths)

    @cached_property
    def ranks(self) -> Index:
        """Which one of its sequence each token is, from 0."""
        return np.arange(len(self)) - self.starts[self.rows]

    @cached_property
    def slots(self) -> Int[Tensor, "N"]:
        """Places of tokens in a grid with one row for each sequence."""
        return self.sent(self.rows * self.longest + self.ranks)

    @cached_property
    def valid(self) -> Bool[Tensor, "R T"] | None:
        """Which places of that grid are taken; none means all."""
        if len(self.lengths) * self.longest == len(self):
            return None
        return self.taken(self.longest)

    @cached_property
    def segments(self) -> Int[Tensor, "1 N"]:
        """The number of every token's sequence, as kernels take it."""
        return self.sent(self.rows.astype(np.int32)).unsqueeze(0)

    @cached_property
    def around(self) -> Around | None:
        """Windows that stand in tables."""
        return None

    def taken(self, width: int) -> Bool[Tensor, "R W"]:
        """The same of a grid with so many places in every row."""
        return self.sent(np.arange(width) < self.lengths[:, None])

    def spaced_slots(self, room: int) -> Index:
        """Places of tokens in one row that has ``room`` between sequences."""
        return np.arange(len(self)) + self.rows * room

    @cached_property
    def _spaced_there(self) -> dict[int, Tensor]:
        return {}

    def spaced_slots_there(self, room: int) -> Int[Tensor, "N"]:
        known = self._spaced_there
        if room not in known:
            known[room] = self.sent(self.spaced_slots(room))
        return known[room]

    def num_spaced(self, room: int) -> int:
        return len(self) + (len(self.lengths) - 1) * room

    def sent(self, made: npt.NDArray[np.int64] | npt.NDArray[np.int32] | npt.NDArray[np.bool_]) -> Tensor:
        return sent(torch.from_numpy(made), self.device)


@dataclass(frozen=True, eq=False)
class Places:
    """Who of them reads: ``readers`` lists the tokens whose next states are asked for, in order; none means all."""

    sequences: Sequences
    readers: Index | None = None

    @classmethod
    def several(cls, sequences: Sequences, readers: Sequence[Index], *, in_grid: bool) -> list["Places"]:
        """Several of them, of which a device hears at once: who reads and, ``in_grid``, where in a ``reader_grid``."""
        made = [cls(sequences, each) for each in readers]
        for number, each in enumerate(made, 1):
            vars(each)["_later"] = made[number:]
        slots = [each._reader_slots for each in made] if in_grid else []
        there = iter(sent_together([*readers, *slots], sequences.device))
        for name in ("readers_there", "_reader_slots_there")[: 1 + in_grid]:
            for each in made:
                vars(each)[name] = next(there)
        return made

    @classmethod
    def tabled(
        cls,
        sequences: Sequences,
        readers: Int[Tensor, "A"] | None,
        most: int | None = None,
        slots: Int[Tensor, "A"] | None = None,
    ) -> "Places":
        """The same of who reads; ``most`` of one row, in whose grid they have ``slots``."""
        if readers is None:
            made = cls(sequences)
            known = {"most_readers": vars(sequences).get("longest")}
        else:
            made = cls(sequences, np.empty(len(readers), dtype=np.int64))
            known = {"readers_there": readers, "most_readers": most, "_reader_slots_there": slots}
        vars(made).update(known)
        return made

    @property
    def num_readers(self) -> int:
        return len(self.sequences) if self.readers is None else len(self.readers)

    @property
    def valid(self) -> Bool[Tensor, "R T"] | None:
        """Which places of ``grid`` are taken; none means all."""
        return self.sequences.valid

    @cached_property
    def readers_there(self) -> Int[Tensor, "A"] | None:
        return None if self.readers is None else self.sequences.sent(self.readers)

    def taken(self, x: Float[Tensor, "1 N D"]) -> Float[Tensor, "1 A D"]:
        """The states of those who read."""
        return x if self.readers_there is None else x.index_select(1, self.readers_there)

    def narrowed(self, x: Float[Tensor, "1 N D"], left: int, right: int) -> tuple[Float[Tensor, "1 M D"], "Places"]:
        """Without tokens that no reader sees, where readers look so far back and ahead.

        What is left of a sequence may fall apart. Its parts are sequences then: nobody looks over their ends.
        """
        sequences, readers = self.sequences, self.readers
        if readers is None or sequences.are_tabled or len(readers) * (left + 1 + right) > SEEN_OFTEN * len(sequences):
            return x, self
        if x.device.type != "cpu" and len(sequences) < FEW_ELSEWHERE:
            return x, self
        starts, ends = sequences.starts[self._reader_rows], (sequences.starts + sequences.lengths)[self._reader_rows]
        first, end = np.maximum(readers - left, starts), np.minimum(readers + right + 1, ends)
        seen = np.cumsum(
            np.bincount(first, minlength=len(sequences) + 1) - np.bincount(end, minlength=len(sequences) + 1)
        )
        kept = np.flatnonzero(seen[:-1])
        if len(kept) > WORTH_NARROWING * len(sequences):
            return x, self
        begins = (np.diff(kept, prepend=-2) != 1) | (np.diff(sequences.rows[kept], prepend=-1) != 0)
        parts = Sequences(np.cumsum(begins) - 1, sequences.device)
        return x.index_select(1, sequences.sent(kept)), Places(parts, np.searchsorted(kept, readers))

    def windows(self, left: int, right: int) -> tuple[Int[Tensor, "A K"], Bool[Tensor, "A K"]]:
        """The tokens from so many before each reader to so many after it, and which of them there are: beyond the ends
        of a sequence another token stands for what is not there."""
        if self.sequences.around is not None and self.readers_there is not None:
            return self.sequences.around.of(self.readers_there, left, right)
        if (left, right) not in self._windows:
            self._look_around(left, right)
        return self._windows[left, right]

    @cached_property
    def _windows(self) -> dict[tuple[int, int], tuple[Tensor, Tensor]]:
        return {}

    @cached_property
    def _later(self) -> list["Places"]:
        """Those made together with it that come after it."""
        return []

    def _look_around(self, left: int, right: int) -> None:
        """Windows for these readers and, since a call takes longer than numbers do, for later ones."""
        sequences, together = self.sequences, [self, *self._later]
        everyone = np.arange(len(sequences))
        readers = np.concatenate([everyone if each.readers is None else each.readers for each in together])
        rows = sequences.rows[readers]
        first, last = sequences.starts[rows], (sequences.starts + sequences.lengths - 1)[rows]
        wanted = readers[:, None] + np.arange(-left, right + 1)
        seen = np.minimum(np.maximum(wanted, first[:, None]), last[:, None])
        sizes = [each.num_readers for each in together]
        found = zip(sequences.sent(seen).split(sizes), sequences.sent(seen == wanted).split(sizes), strict=True)
        for each, windows in zip(together, found, strict=True):
            each._windows[left, right] = windows

    # One row for each sequence, padded at the end: what attention and averages need

    @cached_property
    def _reader_rows(self) -> Index:
        return self.sequences.rows if self.readers is None else self.sequences.rows[self.readers]

    @cached_property
    def _num_by_row(self) -> Index:
        if self.readers is None:
            return self.sequences.lengths
        return np.bincount(self._reader_rows, minlength=len(self.sequences.lengths))

    @cached_property
    def most_readers(self) -> int:
        """Of one sequence."""
        return int(self._num_by_row.max())

    def reader_slots(self, most: int) -> Index:
        """Places of readers in a grid that has room for so many of every sequence."""
        ranks = np.arange(self.num_readers) - _starts(self._num_by_row)[self._reader_rows]
        return self._reader_rows * most + ranks

    @cached_property
    def _reader_slots(self) -> Index:
        return self.reader_slots(self.most_readers)

    @cached_property
    def _reader_slots_there(self) -> Int[Tensor, "A"]:
        return self.sequences.slots if self.readers is None else self.sequences.sent(self._reader_slots)

    @cached_property
    def positions(self) -> Int[Tensor, "R P"]:
        """Where in its row of ``grid`` each reader of ``reader_grid`` stands; 0 where there is none."""
        grid = np.zeros(len(self.sequences.lengths) * self.most_readers, dtype=np.int64)
        grid[self._reader_slots] = self.sequences.ranks if self.readers is None else self.sequences.ranks[self.readers]
        return self.sequences.sent(grid.reshape(-1, self.most_readers))

    @property
    def _fill_their_grid(self) -> bool:
        """Whether readers lie as in ``reader_grid``, every place of it taken. Those in a table may lie anywhere."""
        if self.sequences.are_tabled:
            return self.readers is None and self.valid is None
        return len(self.sequences.lengths) * self.most_readers == self.num_readers

    def grid(self, x: Float[Tensor, "1 N D"]) -> Float[Tensor, "R T D"]:
        """States of all tokens, zeros behind the end of a sequence."""
        num_rows, length = len(self.sequences.lengths), self.sequences.longest
        if self.valid is None:
            return x.view(num_rows, length, -1)
        return _spread(x, self.sequences.slots, num_rows, length)

    def padded(self, x: Float[Tensor, "1 N D"], width: int) -> tuple[Float[Tensor, "R W D"], Bool[Tensor, "R W"]]:
        """The same with so many places in every row, and which of them are taken."""
        return F.pad(self.grid(x), (0, 0, 0, width - self.sequences.longest)), self.sequences.taken(width)

    def reader_grid(self, x: Float[Tensor, "1 A D"]) -> Float[Tensor, "R P D"]:
        """States of the readers of each sequence."""
        num_rows, most = len(self.sequences.lengths), self.most_readers
        if self._fill_their_grid:
            return x.view(num_rows, most, -1)
        return _spread(x, self._reader_slots_there, num_rows, most)

    def from_reader_grid(self, grid: Float[Tensor, "R P D"]) -> Float[Tensor, "1 A D"]:
        """The way back."""
        if self._fill_their_grid:
            return grid.reshape(1, self.num_readers, -1)
        return grid.flatten(0, 1).index_select(0, self._reader_slots_there).unsqueeze(0)

    # One long row with room between sequences: what convolutions need

    def spaced(self, x: Float[Tensor, "1 N C"], room: int) -> Float[Tensor, "1 M C"]:
        """Tokens with at least ``room`` zeros between sequences, so that none sees another's."""
        if len(self.sequences.lengths) == 1:
            return x
        row = x.new_zeros(1, self.sequences.num_spaced(room), x.shape[-1])
        return row.index_copy_(1, self.sequences.spaced_slots_there(room), x)

    def spaced_readers(self, room: int) -> Int[Tensor, "1 A"]:
        """Where readers stand in a ``spaced`` row."""
        if self.readers is None:
            return self.sequences.spaced_slots_there(room).unsqueeze(0)
        if self.readers_there is not None and len(self.sequences.lengths) == 1:
            return self.readers_there.unsqueeze(0)
        return self.sequences.sent(self.readers + self._reader_rows * room).unsqueeze(0)

    def spaced_valid(self, room: int) -> Bool[Tensor, "1 M"]:
        """Which places of a ``spaced`` row are taken."""
        valid = np.zeros(self.sequences.num_spaced(room), dtype=np.bool_)
        valid[self.sequences.spaced_slots(room)] = True
        return self.sequences.sent(valid).unsqueeze(0)


def _starts(counts: Index) -> Index:
    """Where each of several groups begins that lie one behind the other."""
    return np.cumsum(counts) - counts


def _spread(x: Float[Tensor, "1 N D"], slots: Int[Tensor, "N"], num_rows: int, length: int) -> Tensor:
    spread = x.new_zeros(num_rows * length, x.shape[-1]).index_copy_(0, slots, x[0])
    return spread.view(num_rows, length, -1)
