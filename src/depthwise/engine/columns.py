"""What a decoder writes for every column (step) of every row, in place."""

import copy

import torch

from depthwise.engine.rows import Pending, Rows
from depthwise.shapes import Float, Int, Tensor

FIRST_CAPACITY = 64


class Columns:
    """One vector for each row and column, in a table (rows, capacity, width) that grows by doubling.

    Where nobody looks back further than ``reach`` columns, older ones make room for new ones instead. Columns are
    counted from the beginning of the decoding, whatever the table still holds. What nobody has written is 0: readers
    that weigh it by 0 must not find infinities there.
    """

    def __init__(self, like: Tensor, num_rows: int, width: int, reach: int | None = None) -> None:
        self.num_rows, self.width, self.reach = num_rows, width, reach
        self._table = like.new_zeros(num_rows, FIRST_CAPACITY, width)
        self._first = self._end = 0

    @property
    def device(self) -> torch.device:
        return self._table.device

    @property
    def end(self) -> int:
        """Behind the last column that there is room for."""
        return self._end

    def make_room(self, end: int) -> None:
        """Room for all columns before ``end``."""
        if end - self._first > self._table.shape[1]:
            oldest = self._oldest
            capacity = max(2 * (end - oldest), FIRST_CAPACITY)
            table = self._table.new_zeros(self.num_rows, capacity, self.width)
            table[:, : self._end - oldest] = self.between(oldest, self._end)
            self._table, self._first = table, oldest
        self._end = max(self._end, end)

    def between(self, start: int, end: int) -> Float[Tensor, "B L C"]:
        """These columns of all rows, as they lie in the table."""
        return self._table[: self.num_rows, start - self._first : end - self._first]

    def put(self, column: int, values: Float[Tensor, "R C"], rows: Int[Tensor, "R"] | None = None) -> None:
        """Write one column, of all rows or of some."""
        target = self._table[: self.num_rows, column - self._first]
        if rows is None:
            target.copy_(values)
        else:
            target.index_copy_(0, rows, values.to(target.dtype))

    def put_at(self, rows: Int[Tensor, "..."], columns: Int[Tensor, "..."], values: Float[Tensor, "... C"]) -> None:
        """Write single places."""
        self._table[rows, columns - self._first] = values.to(self._table.dtype)

    def at(self, rows: Int[Tensor, "..."], columns: Int[Tensor, "..."]) -> Float[Tensor, "... C"]:
        """What stands in single places."""
        return self._table[rows, columns - self._first]

    def move(self, sources: Int[Tensor, "M"], targets: Int[Tensor, "M"]) -> None:
        """Rows ``targets`` become what rows ``sources`` are."""
        kept = self._table[:, self._oldest - self._first : self._end - self._first]
        kept.index_copy_(0, targets, kept.index_select(0, sources))

    # Where rows come and go

    def shift(self, by: int) -> None:
        """Column c becomes column c + ``by``. Those before 0 are forgotten; what comes in front of the first is 0."""
        oldest, end = self._oldest + by, self._end + by
        self._first, self._end = self._first + by, end
        wanted = 0 if self.reach is None else max(0, end - self.reach)
        if self._first > wanted:
            table = self._table.new_zeros(self.num_rows, max(2 * (end - wanted), FIRST_CAPACITY), self.width)
            table[:, oldest - wanted : end - wanted] = self.between(oldest, end)
            self._table, self._first = table, wanted
        elif oldest > wanted:
            self.between(wanted, oldest).zero_()

    def add_rows(self, count: int) -> None:
        """So many more rows, of zeros, behind the last."""
        num_rows = self.num_rows + count
        if num_rows > len(self._table):
            self._table = torch.cat(
                [self._table, self._table.new_zeros(num_rows - len(self._table), *self._table.shape[1:])]
            )
        self._table[self.num_rows : num_rows, self._oldest - self._first : self._end - self._first] = 0
        self.num_rows = num_rows

    def last_rows(self, count: int) -> "Columns":
        """The same columns of the last rows alone; what is written there is written here."""
        part = copy.copy(self)
        part.num_rows, part._table = count, self._table[self.num_rows - count : self.num_rows]
        return part

    @property
    def _oldest(self) -> int:
        """The first column that may still be read."""
        oldest = max(self._first, 0)
        return oldest if self.reach is None else max(oldest, self._end - self.reach)


class RunningSum:
    """The sum of what all columns of a row wrote, in float32 at least."""

    def __init__(self, like: Tensor, num_rows: int, width: int) -> None:
        self.num_rows = num_rows
        self._total = like.new_zeros(num_rows, width, dtype=precision_of_sums(like))

    @property
    def total(self) -> Float[Tensor, "B C"]:
        return self._total[: self.num_rows]

    def add(self, rows: Int[Tensor, "M"] | None, values: Float[Tensor, "M C"]) -> None:
        """Add to these rows, which may be named more than once; none stands for each of them."""
        if rows is None:
            self.total.add_(values)
        else:
            self._total.index_add_(0, rows, values.to(self._total.dtype))

    def advance(self, rows: Rows, column: int, values: Float[Tensor, "R C"]) -> Float[Tensor, "R C"]:
        """Add the newest column of these rows; returns their sums with it."""
        self.add(rows.selection, values)
        return rows.of(self.total)

    def before(self, pending: Pending) -> Float[Tensor, "R C"]:
        """The sums of rows before the columns that are pending; a copy."""
        return pending.rows.of(self.total).clone()

    def extend(self, pending: Pending, grid: Float[Tensor, "R P C"]) -> None:
        """Add all columns that are pending, with zeros in the grid where a row has none."""
        self.add(pending.rows.index, grid.to(self._total.dtype).sum(1))

    def begin_from(self, total: Float[Tensor, "B C"], length: int) -> None:
        """The sums after the first columns."""
        self.total.copy_(total)

    def make_room(self, end: int) -> None:
        """A sum has room for all."""

    def move(self, sources: Int[Tensor, "M"], targets: Int[Tensor, "M"]) -> None:
        self._total.index_copy_(0, targets, self._total.index_select(0, sources))

    def shift(self, by: int) -> None:
        """A sum has no columns."""

    def add_rows(self, count: int) -> None:
        """So many more rows, of zeros, behind the last."""
        num_rows, width = self.num_rows + count, self._total.shape[1]
        if num_rows > len(self._total):
            self._total = torch.cat([self._total, self._total.new_zeros(num_rows - len(self._total), width)])
        self._total[self.num_rows : num_rows] = 0
        self.num_rows = num_rows

    def last_rows(self, count: int) -> "RunningSum":
        """The last rows alone; what is written there is written here."""
        part = copy.copy(self)
        part.num_rows, part._total = count, self._total[self.num_rows - count : self.num_rows]
        return part


class SumsByColumn(Columns):
    """A ``RunningSum`` of which columns can be taken back: in column c stands the sum of all before it.

    Whoever goes back to column c finds there what was true then, and writes over the rest.
    """

    def __init__(self, like: Tensor, num_rows: int, width: int, reach: int) -> None:
        super().__init__(like.new_empty(0, dtype=precision_of_sums(like)), num_rows, width, reach + 2)

    def make_room(self, end: int) -> None:
        super().make_room(end + 1)

    def advance(self, rows: Rows, column: int, values: Float[Tensor, "R C"]) -> Float[Tensor, "R C"]:
        total = rows.of(self.between(column, column + 1).squeeze(1)) + values
        self.put(column + 1, total, rows.selection)
        return total

    def before(self, pending: Pending) -> Float[Tensor, "R C"]:
        return self.at(pending.rows.index, pending.column_grid[:, 0])

    def extend(self, pending: Pending, grid: Float[Tensor, "R P C"]) -> None:
        sums = self.before(pending).unsqueeze(1) + grid.to(self._table.dtype).cumsum(1)
        self.put_at(pending.of_row, pending.columns + 1, pending.flat(sums))

    def begin_from(self, total: Float[Tensor, "B C"], length: int) -> None:
        self.put(length, total)


def precision_of_sums(like: Tensor) -> torch.dtype:
    return torch.float64 if like.dtype == torch.float64 else torch.float32
