"""Which rows of a decoding something is about."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import torch

from depthwise.memory import sent
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """Some of ``num_all`` rows, by their rising numbers on the host; ``index`` has them on the device."""

    numbers: np.ndarray
    num_all: int
    device: torch.device

    @classmethod
    def every(cls, num_all: int, device: torch.device) -> "Rows":
        return cls(np.arange(num_all), num_all, device)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def are_all(self) -> bool:
        return len(self.numbers) == self.num_all

    @cached_property
    def index(self) -> Int[Tensor, "R"]:
        return on_device(self.numbers, self.device)

    @property
    def selection(self) -> Int[Tensor, "R"] | None:
        """``index``, or none for all rows."""
        return None if self.are_all else self.index

    def those(self, wanted: np.ndarray) -> "Rows":
        """The rows for which ``wanted`` (one truth value each) holds."""
        return Rows(self.numbers[wanted], self.num_all, self.device)

    def get(self, values: np.ndarray) -> np.ndarray:
        """Their part of what the host knows of all rows; a copy."""
        return values.copy() if self.are_all else values[self.numbers]

    def set(self, values: np.ndarray, value: int | np.ndarray) -> None:
        """Change their part of it."""
        if self.are_all:
            values[:] = value
        else:
            values[self.numbers] = value

    def of(self, table: Tensor) -> Tensor:
        """Their part of a tensor that has all rows."""
        return table if self.are_all else table.index_select(0, self.index)


@dataclass(frozen=True, eq=False)
class Pending:
    """The columns of some rows from ``begins`` to ``ends`` (one for each): M of them, one row after the other."""

    rows: Rows
    begins: np.ndarray
    ends: np.ndarray

    @property
    def end(self) -> int:
        """Behind the last column of all."""
        return int(self.ends.max())

    @cached_property
    def counts(self) -> np.ndarray:
        counts: np.ndarray = self.ends - self.begins
        return counts

    @cached_property
    def _ranks(self) -> np.ndarray:
        """Which one of its row each is, from 0."""
        ranks: np.ndarray = np.arange(self.counts.sum()) - np.repeat(self.counts.cumsum() - self.counts, self.counts)
        return ranks

    @cached_property
    def of_row(self) -> Int[Tensor, "M"]:
        return on_device(np.repeat(self.rows.numbers, self.counts), self.rows.device)

    @cached_property
    def columns(self) -> Int[Tensor, "M"]:
        return on_device(self._ranks + np.repeat(self.begins, self.counts), self.rows.device)

    @cached_property
    def last(self) -> Int[Tensor, "R"]:
        """Where the last of each row stands."""
        return on_device(self.counts.cumsum() - 1, self.rows.device)

    @cached_property
    def single(self) -> int | None:
        """The column that is the only one of every row; none where there is no such."""
        first = int(self.begins[0])
        return first if (self.begins == first).all() and (self.ends == first + 1).all() else None

    # One row for each, as long as the longest: what attention and averages need

    @cached_property
    def most(self) -> int:
        return int(self.counts.max())

    @cached_property
    def _slots(self) -> Int[Tensor, "M"]:
        starts = np.repeat(np.arange(len(self.rows)) * self.most, self.counts)
        return on_device(starts + self._ranks, self.rows.device)

    @cached_property
    def is_there(self) -> Bool[Tensor, "R P"]:
        return on_device(np.arange(self.most) < self.counts[:, None], self.rows.device)

    @cached_property
    def column_grid(self) -> Int[Tensor, "R P"]:
        """The columns; the last one where there is none."""
        columns = np.minimum(self.begins[:, None] + np.arange(self.most), self.ends[:, None] - 1)
        return on_device(columns, self.rows.device)

    def grid(self, x: Float[Tensor, "M C"]) -> Float[Tensor, "R P C"]:
        """Zeros behind the last of a row."""
        size = len(self.rows) * self.most
        spread = x if len(x) == size else x.new_zeros(size, x.shape[1]).index_copy_(0, self._slots, x)
        return spread.view(len(self.rows), self.most, -1)

    def flat(self, grid: Float[Tensor, "R P C"]) -> Float[Tensor, "M C"]:
        """The way back."""
        return grid.flatten(0, 1).index_select(0, self._slots)


class Closing(NamedTuple):
    """How the places of those who leave are closed: ``movers``, the last of those who stay, go to ``holes``.

    So little has to be copied. ``order`` has the old numbers of those who are left.
    """

    order: np.ndarray
    movers: np.ndarray
    holes: np.ndarray

    @classmethod
    def after(cls, leaves: np.ndarray) -> Self:
        staying, num_left = np.flatnonzero(~leaves), int((~leaves).sum())
        order, movers = np.arange(num_left), staying[staying >= num_left]
        holes = np.flatnonzero(leaves[:num_left])
        order[holes] = movers
        return cls(order, movers, holes)


def each_row(numbers: np.ndarray, rows_each: int) -> np.ndarray:
    """The rows of sources with these numbers."""
    rows: np.ndarray = (numbers[:, None] * rows_each + np.arange(rows_each)).reshape(-1)
    return rows


def on_device(numbers: np.ndarray, device: torch.device) -> Tensor:
    """Numbers of the host as a tensor; nobody waits for the device."""
    return sent(torch.from_numpy(numbers), device)
