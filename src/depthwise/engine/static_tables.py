"""Tensors that stay where they are while text is generated, so that recorded work finds them."""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from math import prod

import torch

from depthwise.shapes import Bool, Float, Int, Tensor


class Arena:
    """Named storage that only grows; tables of different shapes lie in the same place, one at a time.

    ``num_moves`` counts how often something was moved: who recorded addresses has to record again.
    """

    def __init__(self, like: Tensor) -> None:
        self.like, self.num_moves = like, 0
        self._storage: dict[tuple[str, torch.dtype], Tensor] = {}

    def table(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A table of this shape at the beginning of the storage of this name."""
        key, size = (name, dtype or self.like.dtype), prod(shape)
        known = self._storage.get(key)
        if known is None or len(known) < size:
            self._storage[key] = self.like.new_zeros(size, dtype=key[1])
            self.num_moves += known is not None
        return self._storage[key][:size].view(shape)

    def count(self, name: str, size: int, step: int = 1) -> Int[Tensor, "_n"]:
        """The numbers from 0 on, by steps."""
        numbers = self.table(name, size, dtype=torch.long)
        return numbers.copy_(torch.arange(size, device=numbers.device) * step)


@dataclass(frozen=True, eq=False)
class Chosen:
    """The rows that a piece of work is about: the first ``count``, or those that ``index`` names.

    An index that is longer than there are rows to name goes on with the row behind all others, which belongs to nobody.
    """

    count: int
    index: Int[Tensor, "R"] | None = None

    def of(self, table: Tensor, each: int = 1) -> Tensor:
        """Their part of a table with a row for every ``each`` of theirs."""
        if self.index is None:
            return table[: self.count // each]
        return table.index_select(0, self.index if each == 1 else self.index // each)

    def put(self, table: Tensor, values: Tensor) -> None:
        """Write their part of a table."""
        if self.index is None:
            table[: self.count] = values
        else:
            table.index_copy_(0, self.index, values.to(table.dtype))

    @property
    def key(self) -> tuple[int, bool]:
        return self.count, self.index is None


class Counters:
    """Which column is the newest of each row (``now``), and which token of its text that is (``steps``).

    ``ends`` are the columns behind it. In a ring of P places, column c lies in place c mod P, where column c - P was
    before; that of a row begins at ``firsts``. Tables have a row for everybody and one that belongs to nobody.
    """

    def __init__(self, arena: Arena, num_rows: int, sizes: Set[int]) -> None:
        self.nobody = num_rows
        self.counters: Int[Tensor, "B 3"] = arena.table("counters", num_rows + 1, 3, dtype=torch.long)
        self.now, self.steps, self.ends = self.counters.unbind(1)
        self.firsts = {size: arena.count(f"firsts {size}", num_rows + 1, size) for size in sizes}

    def by_row(self) -> Iterator[tuple[Tensor, float]]:
        """What belongs to a row from one step to the next, each with what stands there for nothing."""
        yield self.counters, 0

    def take_place(self) -> None:
        """Other tables may have been here."""

    def start(self, count: int, length: int, padding: Int[Tensor, "B"] | None) -> None:
        """The first rows have ``length`` columns, of which the first ones may be padding."""
        self.now[:count] = self.steps[:count] = length
        self.ends[:count] = length + 1
        if padding is not None:
            self.steps[: len(padding)] -= padding


class Clock(Counters):
    """Where the newest column of each row lies (``newest``), and what is seen from there.

    Attention sees the places that hold something: ``masks``. Convolutions see all of theirs in the order of columns,
    ``windows``, of which those are ``real`` that do not lie before the first token; some ask for that.
    """

    def __init__(
        self, arena: Arena, num_rows: int, capacity: int, attended: Set[int], convolved: Set[int], asking: Set[int]
    ) -> None:
        def table(name: str, *shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return arena.table(name, num_rows + 1, *shape, dtype=dtype)

        sizes = {capacity, *attended, *convolved}
        super().__init__(arena, num_rows, sizes)
        self.capacity = capacity
        self.newest: dict[int, Int[Tensor, "B"]] = {size: table(f"newest {size}") for size in sizes}
        self.masks: dict[int, Float[Tensor, "B P"]] = {
            size: table(f"mask {size}", size, dtype=arena.like.dtype) for size in attended
        }
        self.windows: dict[int, Int[Tensor, "B K"]] = {size: table(f"window {size}", size) for size in convolved}
        self.real: dict[int, Bool[Tensor, "B K"]] = {
            size: table(f"real {size}", size, dtype=torch.bool) for size in asking
        }
        self._numbers = arena.count("numbers", max(sizes))
        self._offsets = arena.table(f"offsets {capacity}", capacity, dtype=torch.long)
        self._offsets.copy_(self._numbers[:capacity] - capacity)
        self._orders = {size: self._order(arena, size) for size in convolved}

    def _order(self, arena: Arena, size: int) -> Int[Tensor, "K K"]:
        """The places of a ring from the oldest column to the newest, by the place of that."""
        places = self._numbers[:size]
        order = arena.table(f"order {size}", size, size, dtype=torch.long)
        return order.copy_((places.unsqueeze(1) + 1 + places) % size)

    def by_row(self) -> Iterator[tuple[Tensor, float]]:
        yield from super().by_row()
        yield from ((mask, -torch.inf) for mask in self.masks.values())

    def take_place(self) -> None:
        """From now on, what goes nowhere goes to the row of nobody."""
        for size, newest in self.newest.items():
            newest[self.nobody].fill_(self.nobody * size)

    def start(self, count: int, length: int, padding: Int[Tensor, "B"] | None) -> None:
        super().start(count, length, padding)
        for size, mask in self.masks.items():
            columns = torch.arange(max(0, length - size), length, device=mask.device)
            is_padding = columns < (length - self.steps[:count]).unsqueeze(1)
            mask[:count, columns % size] = mask.new_zeros(is_padding.shape).masked_fill_(is_padding, -torch.inf)

    def begin(self, count: int) -> None:
        """Note for the first rows where their newest column goes, and which places they see."""
        now, steps = self.now[:count], self.steps[:count]
        for size, newest in self.newest.items():
            first, place = self.firsts[size][:count], now % size
            torch.add(first, place, out=newest[:count])
            if size in self.windows:
                places = self._orders[size].index_select(0, place)
                torch.add(first.unsqueeze(1), places, out=self.windows[size][:count])
        for size, mask in self.masks.items():
            mask.view(-1).index_fill_(0, self.newest[size][:count], 0)
        for size, real in self.real.items():
            torch.ge(self._numbers[:size], size - 1 - steps.unsqueeze(1), out=real[:count])

    def end(self, count: int) -> None:
        self.counters[:count].add_(1)

    def late(self, chosen: Chosen, count: int) -> Int[Tensor, "R W"]:
        """The last ``count`` columns before the newest of each row."""
        return chosen.of(self.now).unsqueeze(1) + self._offsets[len(self._offsets) - count :]

    def places(
        self, size: int, chosen: Chosen, columns: Int[Tensor, "R W"], is_new: Bool[Tensor, "R W"]
    ) -> Int[Tensor, "R W"]:
        """Where columns lie in rings of a size; those that are not new, in the row of nobody."""
        places = chosen.of(self.firsts[size]).unsqueeze(1) + (columns if size == self.capacity else columns % size)
        return places.where(is_new, self.newest[size][self.nobody])


class Ring:
    """A vector for each row and each of its last ``size`` columns. What nobody has written is 0."""

    def __init__(self, arena: Arena, name: str, num_rows: int, size: int, width: int) -> None:
        self.size = size
        self.table: Float[Tensor, "B P C"] = arena.table(name, num_rows + 1, size, width)
        self.places: Float[Tensor, "BP C"] = self.table.view(-1, width)

    def put(self, places: Int[Tensor, "M"], values: Float[Tensor, "M C"]) -> None:
        self.places.index_copy_(0, places, values.to(self.places.dtype))

    def at(self, places: Int[Tensor, "... M"]) -> Float[Tensor, "... M C"]:
        return self.places.index_select(0, places.flatten()).view(*places.shape, -1)

    def take_over(self, columns: Float[Tensor, "B L C"], end: int) -> None:
        """The columns of the first rows before ``end``, as many as there is room for."""
        count, length = columns.shape[:2]
        kept = min(length, self.size)
        places = torch.arange(end - kept, end, device=columns.device) % self.size
        self.table[:count, places] = columns[:, length - kept :].to(self.table.dtype)


def rounded_up(count: int, least: int = 1) -> int:
    """The next power of two: work is recorded for few sizes."""
    return max(least, 1 << (count - 1).bit_length())
