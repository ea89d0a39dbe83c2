"""Walks whose blocks a GPU repeats by itself: with few tokens it waits longer for Python than it computes.

A block that some tokens run is recorded for sizes that are rounded up: of tokens, of readers and, for attention, of the
grid in which sequences lie. Who is who stands in tables that stay where they are. Tables have room for one token and
one sequence more than there are; whatever is recorded for nobody happens to these.
"""

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
from depthwise.memory import Index, Places, Sequences, send_into
from depthwise.mixers import SelfAttention
from depthwise.mixers.projected import ProjectedConv
from depthwise.models.stack import Stack
from depthwise.shapes import Float, Int, Tensor

MOST_TOKENS = 16_384
"""Up to so many this is done: with more, kernels take longer than their names."""
LEAST = 16
"""Sizes are multiples of this; there are at most ``STEPS`` of them from one power of two to the next."""
STEPS = 16


def room_for(count: int) -> int:
    """The next size that is recorded: up to a sixteenth more."""
    step = max(LEAST, rounded_up(count) // (2 * STEPS))
    return -(-count // step) * step


@dataclass(frozen=True)
class Rooms:
    """What a recording of a block is bound to: tokens, and rows and steps of the grid where there is attention."""

    tokens: int
    rows: int = 0
    longest: int = 0


class RecordedStack:
    """Tables and recordings of one stack, in one precision."""

    def __init__(self, stack: Stack, like: Tensor, recorder: Recorder) -> None:
        self.arena, self.recorder = Arena(like), recorder
        self.num_layers, self._weights = stack.num_layers, Weights(stack)
        self._moves = 0

    def are_up_to_date(self) -> bool:
        return self._weights.are_as_they_were()

    def table(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A table, of which recordings know the place."""
        with torch.inference_mode(False):  # so that whoever comes next may write to it
            found = self.arena.table(name, *shape, dtype=dtype)
        if self.arena.num_moves > self._moves:
            self._moves = self.arena.num_moves
            self.recorder.forget()
        return found


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
            recorded = known[x.dtype] = RecordedStack(stack, x.new_empty(0), self._recorder(x.device))
        return RecordedWalk(recorded, stack, blocks, x, rows)


def _serves(mixer: object, x: Tensor) -> bool:
    if isinstance(mixer, SelfAttention):
        return mixer.relative is None and mixer.window is None and not mixer.causal
    return isinstance(mixer, ProjectedConv) and mixer.reads_as_it_lies(x)


class RecordedWalk(Walk):
    """A walk in tables. Where any layer attends, these also say where in a grid tokens lie."""

    def __init__(
        self, recorded: RecordedStack, stack: Stack, blocks: PackedBlocks, x: Float[Tensor, "1 N D"], rows: Index
    ) -> None:
        super().__init__(stack, blocks, x, rows)
        self._recorded = recorded
        self._has_grid = any(isinstance(stack.block(layer).mixer, SelfAttention) for layer in range(stack.num_layers))
        self._move_in()

    def tell(self, layer: int, readers: Sequence[Index]) -> None:
        """All lists go into their tables at once."""
        rooms, last = self._rooms, layer + len(readers)
        sizes = [room_for(len(each)) if len(each) else 0 for each in readers]
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
        send_into(self._listed("readers")[layer:last, : max(sizes)], listed)
        if self._has_grid:
            send_into(self._listed("reader slots")[layer:last, : max(sizes)], slots)

    def run(self, layer: int, weight: Float[Tensor, "1 A"] | None = None) -> None:
        assert weight is None, "weights of gates are not recorded"
        size, block, states = self._told_sizes.get(layer), self._blocks.block(self.stack, layer), self._table
        readers = slots = None
        most = self._most.get(layer) if size is not None else None
        if size is not None:
            readers = self._listed("readers")[layer, :size]
            slots = self._listed("reader slots")[layer, :size] if self._has_grid else None
        places = Places.tabled(self._places, readers, most, slots)

        def work() -> None:
            after = block.run_packed(states, places)
            if readers is None:
                states.copy_(after)
            else:
                states.index_copy_(1, readers, after)

        self._recorded.recorder((layer, self._rooms, size, most), work)

    def keep(self, tokens: Index) -> None:
        if len(tokens) < len(self.rows):
            super().keep(tokens)
            self._move_in()

    def _states(self) -> Float[Tensor, "1 N D"]:
        return self.x.clone()

    def _listed(self, name: str) -> Int[Tensor, "L N"]:
        return self._recorded.table(name, self._recorded.num_layers, self._rooms.tokens, dtype=torch.long)

    def _move_in(self) -> None:
        """Put the states into their table, and what is known of their sequences beside it."""
        sequences, x, count = self.sequences, self.x, len(self.rows)
        self._told_sizes: dict[int, int | None] = {}
        self._most: dict[int, int] = {}
        if count == 0:
            return
        tokens = room_for(count + 1)
        self._rooms = Rooms(tokens)
        if self._has_grid:
            self._rooms = Rooms(tokens, room_for(len(sequences.lengths) + 1), room_for(sequences.longest))
        rooms, table = self._rooms, self._recorded.table
        for name in ("readers", *(("reader slots",) if self._has_grid else ())):
            self._listed(name)  # whatever has to move does so before anything is recorded
        self._table = table("states", 1, tokens, x.shape[2])
        segments = table("segments", 1, tokens, dtype=torch.int32)
        send_into(segments, _filled(sequences.rows, tokens, -1)[None].astype(np.int32))
        self._table[:, :count] = x
        self._table[:, count:] = 0
        self.x = self._table[:, :count]
        self._places = Sequences.tabled(segments)
        if self._has_grid:
            slots = table("slots", tokens, dtype=torch.long)
            valid = table("valid", rooms.rows, rooms.longest, dtype=torch.bool)
            placed = sequences.rows * rooms.longest + sequences.ranks
            nowhere = (rooms.rows - 1) * rooms.longest
            send_into(slots, _filled(placed, tokens, nowhere))
            lengths = _filled(sequences.lengths, rooms.rows, 1)  # a row without any token has no softmax
            send_into(valid, np.arange(rooms.longest) < lengths[:, None])
            self._places = Sequences.tabled(segments, (rooms.rows, rooms.longest), slots, valid)


def _filled(numbers: Index, size: int, rest: int) -> Index:
    """So many numbers, of which the last are all the same."""
    filled = np.full(size, rest)
    filled[: len(numbers)] = numbers
    return filled
