"""Walks whose blocks a GPU repeats by itself: with few tokens it waits longer for Python than it computes.

A block that some tokens run is recorded for sizes that are rounded up: of tokens, of readers and, for attention, of the
grid in which sequences lie. Who is who stands in tables that stay where they are. Tables have room for one token and
one sequence more than there are; whatever is recorded for nobody happens to these.
"""

import copy
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from depthwise.engine.linear_maps import Weights
from depthwise.engine.packed_blocks import PackedBlocks
from depthwise.engine.recorder import Recorder
from depthwise.engine.static_tables import Arena, rounded_up
from depthwise.engine.walk import Walk
from depthwise.memory import Around, Index, Places, Sequences, send_into
from depthwise.mixers import SelfAttention
from depthwise.mixers.projected import ProjectedConv
from depthwise.models.block import Block
from depthwise.models.stack import Stack
from depthwise.shapes import Bool, Float, Int, Tensor

MOST_TOKENS = 8192
"""Up to so many this is done: with more, kernels take longer than their names."""
LEAST = 16
"""Sizes are multiples of this."""
HARDLY_FELT = 64
"""Tokens more that should hardly add to the time of a GPU, whose products come in tiles of 64 rows or more, while every
other size is another recording. Not measured by itself."""
FEWEST_FULL_ROWS = 8
"""With fewer rows, another one that belongs to nobody costs more than a mask."""


def room_for(count: int) -> int:
    """The next size that is recorded: an eighth of a power of two more at most if that is hardly felt, else a 32nd."""
    power = rounded_up(count)
    step = max(LEAST, min(power // 8, max(HARDLY_FELT, power // 32)))
    return -(-count // step) * step


def rows_for(count: int) -> int:
    """The same of rows, each of which is felt."""
    step = max(1, rounded_up(count) // 16)
    return -(-count // step) * step


@dataclass(frozen=True)
class Rooms:
    """What a recording of a block is bound to: tokens, and rows and steps of the grid where there is attention.

    ``are_full`` where sequences are all as long as the grid, so that tokens lie as in it.
    """

    tokens: int
    rows: int = 0
    longest: int = 0
    are_full: bool = False

    @classmethod
    def of(cls, sequences: Sequences, *, has_grid: bool) -> "Rooms":
        """Rooms for these, and for a token and a row that belong to nobody."""
        count = len(sequences)
        if not has_grid:
            return cls(room_for(count + 1))
        rows, longest = len(sequences.lengths), sequences.longest
        if rows >= FEWEST_FULL_ROWS and rows * room_for(longest) == count:
            return cls((rows + 1) * longest, rows + 1, longest, are_full=True)
        return cls(room_for(count + 1), rows_for(rows + 1), room_for(longest))

    @classmethod
    def largest(cls, *, has_grid: bool) -> "Rooms":
        """Rooms for as many tokens as there may be, in most of the grids that they may lie in."""
        tokens = MOST_TOKENS + max(MOST_TOKENS // FEWEST_FULL_ROWS, LEAST)
        return cls(tokens, LEAST, MOST_TOKENS // LEAST) if has_grid else cls(tokens)


@dataclass(frozen=True, eq=False)
class Layout:
    """Tables with rooms of one size, and sequences of which they tell. Without attention there is no grid."""

    states: Float[Tensor, "1 N D"]
    segments: Int[Tensor, "1 N"]
    readers: Int[Tensor, "L N"]
    sequences: Sequences
    slots: Int[Tensor, "N"] | None = None
    valid: Bool[Tensor, "R T"] | None = None
    reader_slots: Int[Tensor, "L N"] | None = None
    around: Around | None = None


class RecordedStack:
    """Tables and recordings of one stack, in one precision."""

    def __init__(self, stack: Stack, x: Float[Tensor, "1 N D"], recorder: Recorder) -> None:
        self.arena, self.recorder = Arena(x.new_empty(0)), recorder
        self._num_layers, self._width, self._weights = stack.num_layers, x.shape[2], Weights(stack)
        self._layouts: dict[Rooms, Layout] = {}
        with torch.inference_mode(False), torch.no_grad():  # what follows from weights may be used anywhere
            self.blocks = [_prepared(stack.block(layer)) for layer in range(stack.num_layers)]
        self.mixers = [block.mixer for block in self.blocks]
        self.has_grid = any(isinstance(mixer, SelfAttention) for mixer in self.mixers)
        self._convolutions = [mixer for mixer in self.mixers if isinstance(mixer, ProjectedConv)]
        self.layout(Rooms.largest(has_grid=self.has_grid))  # so that tables hardly ever move

    def are_up_to_date(self) -> bool:
        return self._weights.are_as_they_were()

    def layout(self, rooms: Rooms) -> Layout:
        """Tables of that size. Where one of them has to move for it, what was recorded is forgotten."""
        known = self._layouts.get(rooms)
        if known is not None:
            return known
        num_moves = self.arena.num_moves
        with torch.inference_mode(False):  # so that whoever comes next may write to it
            made = self._made(rooms)
        if self.arena.num_moves > num_moves:
            self._layouts.clear()
            self.recorder.forget()
        self._layouts[rooms] = made
        return made

    def _made(self, rooms: Rooms) -> Layout:
        table, tokens, layers = self.arena.table, rooms.tokens, self._num_layers
        states = table("states", 1, tokens, self._width)
        segments = table("segments", 1, tokens, dtype=torch.int32)
        readers = table("readers", layers, tokens, dtype=torch.long)
        around = self._around(tokens)
        if rooms.rows == 0:
            return Layout(states, segments, readers, Sequences.tabled(segments, around=around), around=around)
        slots = valid = None
        if not rooms.are_full:
            slots = table("slots", tokens, dtype=torch.long)
            valid = table("valid", rooms.rows, rooms.longest, dtype=torch.bool)
        sequences = Sequences.tabled(segments, (rooms.rows, rooms.longest), slots, valid, around)
        reader_slots = table("reader slots", layers, tokens, dtype=torch.long)
        return Layout(states, segments, readers, sequences, slots, valid, reader_slots, around)

    def _around(self, tokens: int) -> Around | None:
        """Tables for the widest windows of any convolution."""
        if not self._convolutions:
            return None
        left = max(mixer.left for mixer in self._convolutions)
        width = left + max(mixer.options.kernel_size - mixer.left for mixer in self._convolutions)
        seen = self.arena.table("seen", tokens, width, dtype=torch.long)
        return Around(seen, self.arena.table("is there", tokens, width, dtype=torch.bool), left)


def _prepared(block: Block) -> Block:
    """The same block, whose mixer has worked out what follows from weights alone."""
    twin = copy.copy(block)
    twin._modules = {**block._modules, "mixer": copy.copy(block.mixer)}
    twin.mixer.prepare()
    return twin


class RecordedWalks:
    """What was recorded for stacks, on devices of a type. One walk at a time; who comes meanwhile walks by hand."""

    def __init__(self, recorder: Callable[[torch.device], Recorder], device_type: str = "cuda") -> None:
        self.one_at_a_time = threading.Lock()
        self._recorder, self._device_type = recorder, device_type
        self._known: weakref.WeakKeyDictionary[Stack, dict[torch.dtype, RecordedStack]] = weakref.WeakKeyDictionary()

    def serve(self, stack: Stack, x: Float[Tensor, "1 N D"]) -> bool:
        """Whether blocks of this stack are recorded for such states."""
        return (
            x.device.type == self._device_type
            and 0 < x.shape[1] <= MOST_TOKENS
            and not stack.training
            and not torch.is_autocast_enabled(x.device.type)
            and all(_serves(stack.block(layer).mixer, x) for layer in range(stack.num_layers))
        )

    def begin(self, stack: Stack, blocks: PackedBlocks, x: Float[Tensor, "1 N D"], rows: Index) -> "RecordedWalk":
        known = self._known.setdefault(stack, {})
        recorded = known.get(x.dtype)
        if recorded is None or recorded.arena.like.device != x.device or not recorded.are_up_to_date():
            recorded = known[x.dtype] = RecordedStack(stack, x, self._recorder(x.device))
        return RecordedWalk(recorded, stack, blocks, x, rows)


def _serves(mixer: object, x: Tensor) -> bool:
    if isinstance(mixer, SelfAttention):
        return mixer.relative is None and mixer.window is None and not mixer.causal
    return isinstance(mixer, ProjectedConv) and mixer.reads_as_it_lies(x)


class RecordedWalk(Walk):
    """A walk in tables. Where any layer attends, these also say where in a grid tokens lie."""

    _rooms: Rooms
    _layout: Layout
    _has_looked: bool

    def __init__(
        self, recorded: RecordedStack, stack: Stack, blocks: PackedBlocks, x: Float[Tensor, "1 N D"], rows: Index
    ) -> None:
        super().__init__(stack, blocks, x, rows)
        self._recorded, self._has_grid = recorded, recorded.has_grid
        self._move_in()

    def tell(self, layer: int, readers: Sequence[Index]) -> None:
        """All lists go into their tables at once."""
        rooms, layout, last = self._rooms, self._layout, layer + len(readers)
        sizes = [min(room_for(len(each)), rooms.tokens) if len(each) else 0 for each in readers]
        listed = np.full((len(readers), max(sizes)), rooms.tokens - 1)
        slots = np.empty_like(listed)
        for row, (each, size) in enumerate(zip(readers, sizes, strict=True)):
            listed[row, : len(each)] = each
            if self._has_grid and size:
                known = Places(self.sequences, each)
                most = room_for(known.most_readers)
                slots[row] = (rooms.rows - 1) * most
                slots[row, : len(each)] = known.reader_slots(most)
                self._most[layer + row] = most
            self._told_sizes[layer + row] = size if len(each) < len(self.rows) else None
        send_into(layout.readers[layer:last, : max(sizes)], listed)
        if layout.reader_slots is not None:
            send_into(layout.reader_slots[layer:last, : max(sizes)], slots)
        if not self._has_looked and any(self._folds(number, size) for number, size in enumerate(sizes, layer)):
            self._look_around()

    def _folds(self, layer: int, num_readers: int) -> bool:
        mixer = self._recorded.mixers[layer]
        if not isinstance(mixer, ProjectedConv) or num_readers == 0:
            return False
        return mixer.folds(self._layout.states, num_readers, is_recorded=True)

    def _look_around(self) -> None:
        """Windows of all tokens, once for all blocks that fold."""
        around, segments = self._layout.around, self._layout.segments
        if around is not None:
            self._recorded.recorder(("windows", self._rooms), lambda: around.look(segments))
            self._has_looked = True

    def run(self, layer: int, weight: Float[Tensor, "1 A"] | None = None) -> None:
        """What is recorded is worked out when it is, and not looked at again."""
        assert weight is None, "weights of gates are not recorded"
        block, layout, size = self._recorded.blocks[layer], self._layout, self._told_sizes.get(layer)
        most = self._most.get(layer) if size is not None else None

        def work() -> None:
            readers = slots = None
            if size is not None:
                readers = layout.readers[layer, :size]
                slots = None if layout.reader_slots is None else layout.reader_slots[layer, :size]
            places = Places.tabled(layout.sequences, readers, most, slots)
            after = block.run_packed(layout.states, places)
            if readers is None:
                layout.states.copy_(after)
            else:
                layout.states.index_copy_(1, readers, after)

        self._recorded.recorder((layer, self._rooms, size, most), work)

    def keep(self, tokens: Index) -> None:
        if len(tokens) < len(self.rows):
            super().keep(tokens)
            self._move_in()

    def _states(self) -> Float[Tensor, "1 N D"]:
        return self.x.clone()

    def _move_in(self) -> None:
        """Put the states into their table, and what is known of their sequences beside it."""
        sequences, x, count = self.sequences, self.x, len(self.rows)
        self._told_sizes: dict[int, int | None] = {}
        self._most: dict[int, int] = {}
        self._has_looked = False
        if count == 0:
            return
        self._rooms = rooms = Rooms.of(sequences, has_grid=self._has_grid)
        self._layout = layout = self._recorded.layout(rooms)
        send_into(layout.segments, _filled(sequences.rows, rooms.tokens, -1)[None].astype(np.int32))
        layout.states[:, :count] = x
        layout.states[:, count:] = 0
        self.x = layout.states[:, :count]
        if layout.slots is not None and layout.valid is not None:
            placed = sequences.rows * rooms.longest + sequences.ranks
            send_into(layout.slots, _filled(placed, rooms.tokens, (rooms.rows - 1) * rooms.longest))
            lengths = _filled(sequences.lengths, rooms.rows, 1)  # a row without any token has no softmax
            send_into(layout.valid, np.arange(rooms.longest) < lengths[:, None])


def _filled(numbers: Index, size: int, rest: int) -> Index:
    """So many numbers, of which the last are all the same."""
    filled = np.full(size, rest)
    filled[: len(numbers)] = numbers
    return filled
