"""Mixers of a decoder in recorded work: what ``step_mixers`` do, with columns that only the device knows.

Attention looks at all places of its ring, of which a mask leaves those that hold something; what shapes depend on is
the same in every step.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from depthwise.engine.columns import Columns, RunningSum, precision_of_sums
from depthwise.engine.static_tables import Arena, Chosen, Clock, Ring
from depthwise.engine.step_attention import AttentionStep
from depthwise.engine.step_mixers import AverageStep, ConvolutionStep, FullConvolutionStep, StepMixer
from depthwise.kernels.column_attention import read_columns
from depthwise.memory import Memory
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Missing:
    """The last W columns before the newest of some rows, as they enter a mixer.

    Those that ``is_new`` names are written only now; the others are in the memory already, or nobody will read them.
    ``places`` are theirs in rings for all columns.
    """

    chosen: Chosen
    entered: Float[Tensor, "R W D"]
    columns: Int[Tensor, "R W"]
    is_new: Bool[Tensor, "R W"]
    places: Int[Tensor, "R W"]


class Remembering(ABC):
    """The mixer of one layer, with its memory in tables that stay."""

    reach: int | None
    """How many earlier columns are seen; none for all."""

    @property
    @abstractmethod
    def table(self) -> Float[Tensor, "B ..."]:
        """All that is remembered, a row for everybody."""

    @abstractmethod
    def load(self, like: Tensor, past: Memory, end: int) -> None:
        """Take over what the masked executor remembers of the columns before ``end``."""


class StaticMixer(Remembering):
    """Runs one column of each row. Work is recorded for all rows or for some."""

    @abstractmethod
    def write(self, clock: Clock, missing: Missing) -> None:
        """Write what is missing."""

    @abstractmethod
    def step(self, clock: Clock, entered: Float[Tensor, "R D"], chosen: Chosen) -> Float[Tensor, "R D"]:
        """Write the newest column of some rows, and read for it."""


class WithRing(Remembering):
    """Mixers that remember a vector of every column they see."""

    def __init__(self, mixer: Any, arena: Arena, name: str, num_rows: int, size: int) -> None:
        self.mixer, self.reach = mixer, mixer.reach
        self.ring = Ring(arena, name, num_rows, size, mixer.width)

    @property
    def table(self) -> Tensor:
        return self.ring.table

    def load(self, like: Tensor, past: Memory, end: int) -> None:
        columns = Columns(like, len(like), self.mixer.width)
        columns.make_room(end)
        self.mixer.load(columns, past, end)
        self.ring.take_over(columns.between(0, end), end)


class _WithRing(WithRing, StaticMixer):
    def write(self, clock: Clock, missing: Missing) -> None:
        places = missing.places
        if self.ring.size != clock.capacity:
            places = clock.places(self.ring.size, missing.chosen, missing.columns, missing.is_new)
        self.ring.put(places.flatten(), self.mixer.written(missing.entered.flatten(0, 1)))


class StaticAttention(_WithRing):
    mixer: AttentionStep

    def step(self, clock: Clock, entered: Tensor, chosen: Chosen) -> Tensor:
        queries, written = self.mixer.all_three(entered).tensor_split((self.mixer.inner,), dim=1)
        self.ring.put(chosen.of(clock.newest[self.ring.size]), written)
        mask, heads = clock.masks[self.ring.size], self.mixer.num_heads
        return self.mixer.out(read_columns(queries, self.ring.table, mask, num_heads=heads, rows=chosen.index))


class StaticConvolution(_WithRing):
    mixer: ConvolutionStep | FullConvolutionStep

    def step(self, clock: Clock, entered: Tensor, chosen: Chosen) -> Tensor:
        written = self.mixer.written(entered)
        self.ring.put(chosen.of(clock.newest[self.ring.size]), written)
        seen = self.ring.at(chosen.of(clock.windows[self.ring.size]))
        real = chosen.of(clock.real[self.ring.size]) if self.asks_what_is_real else None
        return self.mixer.convolved(entered, written, seen, real)

    @property
    def asks_what_is_real(self) -> bool:
        return asks_what_is_real(self.mixer)


class StaticAverage(StaticMixer):
    reach = None

    def __init__(self, mixer: AverageStep, arena: Arena, name: str, num_rows: int) -> None:
        self.mixer, width = mixer, mixer.mixer.hidden.in_features
        self._table = arena.table(name, num_rows + 1, width, dtype=precision_of_sums(arena.like))

    @property
    def table(self) -> Tensor:
        return self._table

    def load(self, like: Tensor, past: Memory, end: int) -> None:
        total = RunningSum(like, len(like), self.table.shape[1])
        self.mixer.load(total, past, end)
        self.table[: len(like)] = total.total

    def write(self, clock: Clock, missing: Missing) -> None:
        new = missing.entered.masked_fill(~missing.is_new.unsqueeze(-1), 0)
        missing.chosen.put(self.table, missing.chosen.of(self.table) + new.to(self.table.dtype).sum(1))

    def step(self, clock: Clock, entered: Tensor, chosen: Chosen) -> Tensor:
        total = chosen.of(self.table) + entered
        chosen.put(self.table, total)
        return self.mixer.mixed(entered, total, (chosen.of(clock.steps) + 1).unsqueeze(1))


def asks_what_is_real(mixer: ConvolutionStep | FullConvolutionStep) -> bool:
    """Whether a convolution has to know which columns lie before the first token: their zeros are not enough."""
    return isinstance(mixer, ConvolutionStep) and mixer.options.renormalize_padding


def static_mixer(mixer: StepMixer[Any], arena: Arena, name: str, num_rows: int, capacity: int) -> StaticMixer:
    """A mixer with memory for so many rows and, where it sees all columns, so many columns."""
    if isinstance(mixer, AverageStep):
        return StaticAverage(mixer, arena, name, num_rows)
    size = capacity if mixer.reach is None else mixer.reach + 1
    kind = StaticAttention if isinstance(mixer, AttentionStep) else StaticConvolution
    return kind(mixer, arena, name, num_rows, size)
