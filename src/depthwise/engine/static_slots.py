"""Columns that may be taken back: where those of a round of lossless decoding lie, and what is seen from there."""

from collections.abc import Iterator, Set

import torch

from depthwise.engine.static_tables import Arena, Counters
from depthwise.shapes import Bool, Float, Int, Tensor


class Slots(Counters):
    """The next M columns of each row: in slot 0 its newest one, behind it those that are drafted.

    A round writes all of them and then counts only those that are kept; the next one writes over the rest. Mixers that
    see all columns have rings for as many as there are. Those of a limited reach share the size of their rings, in
    which none of the M columns lies where one is that the first of them sees, nor one that the next sees if all others
    are taken back. Masks, for attention, are known by their reach, none for all columns; convolutions see the last of
    their ``windows``, of which those are ``real`` that do not lie before the first token. For sums, ``behind`` has the
    places of all slots and of the column behind them in rings of that many.
    """

    def __init__(
        self,
        arena: Arena,
        num_rows: int,
        capacity: int,
        num_slots: int,
        *,
        attended: Set[int | None],
        convolved: Set[int],
        asks_what_is_real: bool,
        sums: bool,
    ) -> None:
        def table(name: str, *shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return arena.table(f"slots: {name}", num_rows + 1, *shape, dtype=dtype)

        reaches = [reach for reach in {*attended, *convolved} if reach is not None]
        self.num_slots, self.capacity, self.short = num_slots, capacity, max(reaches, default=0) + num_slots
        sizes = {capacity} if None in attended else set()
        sizes |= {self.short} if reaches else set()
        super().__init__(arena, num_rows, sizes | ({num_slots + 1} if sums else set()))
        self._places: dict[int, Int[Tensor, "B M"]] = {size: table(f"places {size}", num_slots) for size in sizes}
        self.behind: Int[Tensor, "B M+1"] | None = table("behind", num_slots + 1) if sums else None
        self.step_grid: Int[Tensor, "B M"] = table("steps", num_slots)
        dtype, width = arena.like.dtype, max(convolved, default=-1) + 1
        self.padded: Float[Tensor, "B P"] = table("padded", capacity, dtype=dtype)
        self.masks: dict[int | None, Float[Tensor, "B M P"]] = {
            reach: table(f"mask {reach}", num_slots, self.size_for(reach), dtype=dtype) for reach in attended
        }
        self.windows: Int[Tensor, "B M K"] = table("windows", num_slots, width)
        self.real: Bool[Tensor, "B M K"] | None = None
        if asks_what_is_real:
            self.real = table("real", num_slots, width, dtype=torch.bool)
        self.ahead: Int[Tensor, "_m"] = arena.count("slots: ahead", num_slots + 1)
        self._lags: Int[Tensor, "K"] = arena.count("slots: lags", width).sub_(width - 1)
        self._numbers = arena.count("slots: numbers", max(capacity, self.short))
        self._hidden = arena.like.new_full((), -torch.inf)

    def size_for(self, reach: int | None) -> int:
        """How many places a ring has."""
        return self.capacity if reach is None else self.short

    def places(self, reach: int | None) -> Int[Tensor, "B M"]:
        """Where the slots of all rows lie in rings for such a reach."""
        return self._places[self.size_for(reach)]

    def by_row(self) -> Iterator[tuple[Tensor, float]]:
        yield from super().by_row()
        yield self.padded, 0

    def start(self, count: int, length: int, padding: Int[Tensor, "B"] | None) -> None:
        super().start(count, length, padding)
        if padding is not None:
            is_padding = self._numbers[: self.capacity] < padding.unsqueeze(1)
            self.padded[: len(padding)].masked_fill_(is_padding, -torch.inf)

    def begin(self, count: int) -> None:
        """Note for the first rows where their next columns go, and what is seen from these."""
        behind = self.now[:count].unsqueeze(1) + self.ahead
        columns = behind[:, :-1]
        for size, places in self._places.items():
            torch.add(self.firsts[size][:count].unsqueeze(1), columns % size, out=places[:count])
        if self.behind is not None:
            size = self.num_slots + 1
            torch.add(self.firsts[size][:count].unsqueeze(1), behind % size, out=self.behind[:count])
        torch.add(self.steps[:count].unsqueeze(1), self.ahead[:-1], out=self.step_grid[:count])
        for reach, mask in self.masks.items():
            self._hide(columns.unsqueeze(2), reach, mask[:count])
        if len(self._lags):
            seen = columns.unsqueeze(2) + self._lags
            first = self.firsts[self.short][:count].view(-1, 1, 1)
            torch.add(first, seen % self.short, out=self.windows[:count])
            if self.real is not None:
                torch.ge(seen, self._first_token(count), out=self.real[:count])

    def _first_token(self, count: int) -> Int[Tensor, "R 1 1"]:
        """The column of the first token of each row, behind its padding."""
        return (self.now[:count] - self.steps[:count]).view(-1, 1, 1)

    def _hide(self, columns: Int[Tensor, "R M 1"], reach: int | None, mask: Float[Tensor, "R M P"]) -> None:
        """Leave those places of a ring that hold something that is seen from these columns."""
        count, places = len(columns), self._numbers[: mask.shape[2]]
        if reach is None:
            torch.where(places > columns, self._hidden, self.padded[:count].unsqueeze(1), out=mask)
            return
        ages = (columns - places) % self.short
        mask.zero_().masked_fill_((ages > reach) | (ages > columns - self._first_token(count)), -torch.inf)

    def advance(self, num_kept: Int[Tensor, "R"]) -> None:
        """So many of the slots of the first rows stay."""
        self.counters[: len(num_kept)].add_(num_kept.unsqueeze(1))
