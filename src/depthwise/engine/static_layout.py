"""All tables that recorded decoding of one size works on, and the parts of a step that do."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from depthwise.engine.prepared import Prepared
from depthwise.engine.static_choice import Choice
from depthwise.engine.static_mixers import (
    Missing,
    Remembering,
    StaticAttention,
    StaticConvolution,
    StaticMixer,
    static_mixer,
)
from depthwise.engine.static_tables import Arena, Chosen, Clock, Counters, Ring
from depthwise.kernels.column_attention import read_columns
from depthwise.memory import Memory
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Size:
    """What work is recorded for: at most so many sources with so many rows each, columns, and steps of a source.

    ``keeps_states`` says whether tokens may leave early, and ``num_drafted`` how many may be taken back: none where
    work is that of steps, and not of rounds.
    """

    num_sources: int
    rows_each: int
    capacity: int
    source_length: int
    keeps_states: bool
    num_drafted: int | None = None

    @property
    def num_rows(self) -> int:
        return self.num_sources * self.rows_each


class Tables:
    """What recorded work of any kind has: memories of rows and of sources, the newest tokens and what was chosen."""

    def __init__(
        self, prepared: Prepared, arena: Arena, size: Size, mixers: Sequence[Remembering], clock: Counters
    ) -> None:
        self.prepared, self.size, self.blocks = prepared, size, prepared.blocks
        self._memories, self._counters = mixers, clock
        rows, capacity, width = size.num_rows, size.capacity, arena.like.shape[-1]
        self.positions: Float[Tensor, "L _e"] | None = None
        if prepared.embedding.embedding.positions is not None:
            known = prepared.embedding.of_steps(capacity)
            self.positions = arena.table("positions", *known.shape).copy_(known)
        self.tokens: Int[Tensor, "B"] = arena.table("tokens", rows + 1, dtype=torch.long)
        self.moves: Int[Tensor, "2 B"] = arena.table("moves", 2 * rows, dtype=torch.long).view(2, rows)
        self.x: Float[Tensor, "B D"] = arena.table("x", rows + 1, width)
        like = self.scores(self.x[:1], len(self.blocks))
        self.logits: Float[Tensor, "B V"] = arena.table("logits", rows + 1, like.shape[1], dtype=like.dtype)
        self.choice = Choice(arena, rows, capacity, like.shape[1])
        self.sources: dict[int, Float[Tensor, "G S C"]] = {
            layer: arena.table(f"source {layer}", size.num_sources + 1, size.source_length, block.cross.width)
            for layer, block in enumerate(self.blocks)
            if block.cross is not None
        }
        if self.sources:
            of_source = size.num_sources + 1, size.source_length
            self.source_states: Float[Tensor, "G S D"] = arena.table("source states", *of_source, width)
            self.source_mask: Float[Tensor, "G S"] = arena.table("source mask", *of_source)

    def seen(self, x: Float[Tensor, "R D"], depth: int) -> Float[Tensor, "R D"]:
        """States that have come to this depth, as the head there sees them."""
        return self.prepared.decoder.stack.normalized(x.unsqueeze(1), depth).squeeze(1)

    def scores(self, x: Float[Tensor, "R D"], depth: int) -> Float[Tensor, "R V"]:
        """Scores of states that leave at this depth."""
        return self.prepared.head_at(depth)(self.seen(x, depth))

    def crossed(
        self, layer: int, entered: Float[Tensor, "R D"], rows_each: int, rows: Int[Tensor, "R"] | None = None
    ) -> Float[Tensor, "R D"]:
        """What states, ``rows_each`` for every source, take of these; ``rows`` names them if they are not the first."""
        cross = self.blocks[layer].cross
        assert cross is not None
        queries, heads = cross.query(entered), cross.num_heads
        return cross.out(
            read_columns(
                queries, self.sources[layer], self.source_mask, num_heads=heads, rows=rows, rows_each=rows_each
            )
        )

    def write_source(self, layer: int, num_sources: int) -> None:
        """What a layer sees of the first sources."""
        cross = self.blocks[layer].cross
        assert cross is not None
        self.sources[layer][:num_sources] = cross.written(self.source_states[:num_sources])

    # Between steps

    def start(self, count: int, length: int, padding: Int[Tensor, "B"] | None) -> None:
        """Nothing is left of the first rows, which have ``length`` columns now, the first ones perhaps of padding."""
        self.blank(count)
        self._counters.start(count, length, padding)

    def load(self, num_rows: int, pasts: Sequence[Memory], length: int) -> None:
        """Take over what the masked executor remembers of the columns of the first rows."""
        for mixer, past in zip(self._memories, pasts, strict=True):
            mixer.load(self.x[:num_rows], past, length)

    def by_row(self) -> Iterator[tuple[Tensor, float]]:
        """All that belongs to a row from one step to the next, each with what stands there for nothing."""
        yield from self._counters.by_row()
        tables = (self.tokens, *self.choice.by_row(), *(mixer.table for mixer in self._memories))
        yield from ((table, 0) for table in tables)

    def blank(self, count: int) -> None:
        """Nothing is left of the first rows: what was no number there would not vanish behind a mask."""
        self._counters.take_place()
        for table, nothing in self.by_row():
            table[:count] = nothing

    def take_over(self, smaller: "Tables", count: int) -> None:
        """The first rows of a layout with room for fewer columns, which may lie in the same place."""
        self._counters.take_place()
        for (table, nothing), (before, _) in zip(self.by_row(), smaller.by_row(), strict=True):
            values = before[:count].clone()
            table[:count] = nothing
            table[tuple(map(slice, values.shape))] = values

    def by_source(self, layers: Iterable[int]) -> Iterator[Tensor]:
        """All that belongs to a source, as far as these layers have seen it."""
        yield from (self.source_states, self.source_mask)
        yield from (self.sources[layer] for layer in layers)


class Layout(Tables):
    """Tables of one size. What is done on them is the same in every step, so that it can be recorded.

    ``x`` is the state of each row on its way through the stack, and ``before`` what the exit that it last came to saw
    of it; ``index`` names the rows that still run, where some have left, and ``leaves`` says who goes now.
    ``written[b, n]`` says how many columns of row b are in the memory of layer n.
    """

    def __init__(self, prepared: Prepared, arena: Arena, size: Size) -> None:
        rows, capacity, width = size.num_rows, size.capacity, arena.like.shape[-1]
        self.mixers: list[StaticMixer] = [
            static_mixer(block.mixer, arena, f"memory {layer}", rows, capacity)
            for layer, block in enumerate(prepared.blocks)
        ]
        convolutions = [each for each in self.mixers if isinstance(each, StaticConvolution)]
        self.clock = Clock(
            arena,
            rows,
            capacity,
            attended={each.ring.size for each in self.mixers if isinstance(each, StaticAttention)},
            convolved={each.ring.size for each in convolutions},
            asking={each.ring.size for each in convolutions if each.asks_what_is_real},
        )
        super().__init__(prepared, arena, size, self.mixers, self.clock)
        self.states: Ring | None = None
        if size.keeps_states:
            self.states = Ring(arena, "states", rows, capacity, width)
            self.index: Int[Tensor, "B"] = arena.table("index", rows, dtype=torch.long)
            self.before: Float[Tensor, "B D"] = arena.table("before", rows + 1, width)
            self.leaves: Bool[Tensor, "B"] = arena.table("leaves", rows, dtype=torch.bool)
            self.written: Int[Tensor, "B N"] = arena.table("written", rows + 1, len(self.blocks), dtype=torch.long)

    # Parts of a step

    def begin(self, count: int) -> Float[Tensor, "R D"]:
        """The states in which the newest column of the first rows enters the stack."""
        self.clock.begin(count)
        positions = self.positions
        if positions is not None:
            positions = positions.index_select(0, self.clock.steps[:count])
        return self.prepared.embedding.at(self.tokens[:count], positions)

    def run(self, layer: int, x: Float[Tensor, "R D"], chosen: Chosen, num_late: int = 0) -> Float[Tensor, "R D"]:
        """The states of some rows after a block, which first writes what it misses of the last ``num_late`` columns."""
        mixer = self.mixers[layer]
        if num_late:
            mixer.write(self.clock, self._missing(layer, chosen, num_late))
        return self.blocks[layer].through(
            x,
            lambda entered: mixer.step(self.clock, entered, chosen),
            lambda entered: self.crossed(layer, entered, self.size.rows_each, chosen.index),
            is_recorded=True,
        )

    def note_written(self, layers: range, chosen: Chosen) -> None:
        """The newest column of some rows is in the memories of these layers, and all before it are."""
        ends = chosen.of(self.clock.ends).unsqueeze(1)
        chosen.put(self.written[:, layers.start : layers.stop], ends.expand(-1, len(layers)))

    def _missing(self, layer: int, chosen: Chosen, count: int) -> Missing:
        assert self.states is not None
        columns = self.clock.late(chosen, count)
        is_new = columns >= chosen.of(self.written[:, layer]).unsqueeze(1)
        places = self.clock.places(self.states.size, chosen, columns, is_new)
        return Missing(chosen, self.blocks[layer].enter(self.states.at(places)), columns, is_new, places)

    def end(self, count: int, x: Float[Tensor, "R D"]) -> None:
        """The newest column of the first rows is done; ``x`` are the states in which they left."""
        if self.states is not None:
            self.states.put(self.clock.newest[self.states.size][:count], x)
        self.clock.end(count)

    # Between steps

    def start(self, count: int, length: int, padding: Int[Tensor, "B"] | None) -> None:
        super().start(count, length, padding)
        if self.states is not None:
            self.written[:count] = length

    def by_row(self) -> Iterator[tuple[Tensor, float]]:
        yield from super().by_row()
        yield from () if self.states is None else ((self.states.table, 0), (self.written, 0))
