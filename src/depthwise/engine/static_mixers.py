"""Mixers of a decoder in recorded work: what ``step_mixers`` do, with columns that only the device knows.

Attention looks at all places of its ring, of which a mask leaves those that hold something; what shapes depend on is
the same in every step.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from depthwise.engine.columns import Columns, RunningSum, precision_of_sums
from depthwise.engine.static_tables import Arena, Chosen, Clock, Ring
from depthwise.engine.step_attention import AttentionStep, attend_columns
from depthwise.engine.step_mixers import AverageStep, ConvolutionStep, FullConvolutionStep, StepMixer
from depthwise.memory import Memory
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Missing:
    """The last W columns before the newest of each row, as they enter a mixer; some are written only now.

    ``is_new`` says which; the others are in the memory already, or nobody will read them.
    """

    entered: Float[Tensor, "R W D"]
    columns: Int[Tensor, "R W"]
    is_new: Bool[Tensor, "R W"]


class StaticMixer(ABC):
    """The mixer of one layer, with its memory in tables that stay. Work is recorded for all rows or for some."""

    reach: int | None
    """How many earlier columns are seen; none for all."""

    @abstractmethod
    def step(self, clock: Clock, entered: Float[Tensor, "R D"], chosen: Chosen, missing: Missing | None) -> Tensor:
        """Write the newest column of some rows, together with what is missing, and read for it."""

    @property
    @abstractmethod
    def table(self) -> Float[Tensor, "B ..."]:
        """All that is remembered, a row for everybody."""

    @abstractmethod
    def load(self, like: Tensor, past: Memory, end: int) -> None:
        """Take over what the masked executor remembers of the columns before ``end``."""


class _WithRing(StaticMixer):
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

    def put(self, clock: Clock, entered: Tensor, chosen: Chosen, missing: Missing | None) -> Tensor:
        """Write the newest column and what is missing, in one product; returns what the newest column left."""
        newest = chosen.of(clock.newest[self.ring.size])
        if missing is None:
            written: Tensor = self.mixer.written(entered)
            self.ring.put(newest, written)
            return written
        both = torch.cat([missing.entered, entered.unsqueeze(1)], dim=1)
        all_written = self.mixer.written(both.flatten(0, 1)).view(*both.shape[:2], -1)
        self.ring.put(self.places(clock, chosen, missing, newest), all_written.flatten(0, 1))
        return all_written[:, -1]

    def places(self, clock: Clock, chosen: Chosen, missing: Missing, newest: Tensor) -> Int[Tensor, "M"]:
        """Where columns go; those that are not new, to the row of nobody."""
        size = self.ring.size
        rows = chosen.of(clock.rows).unsqueeze(1).where(missing.is_new, clock.rows[clock.nobody])
        return torch.cat([rows * size + missing.columns % size, newest.unsqueeze(1)], dim=1).flatten()


class StaticAttention(_WithRing):
    mixer: AttentionStep

    def step(self, clock: Clock, entered: Tensor, chosen: Chosen, missing: Missing | None) -> Tensor:
        if missing is None:
            queries, written = self.mixer.all_three(entered).tensor_split((self.mixer.inner,), dim=1)
            self.ring.put(chosen.of(clock.newest[self.ring.size]), written)
        else:
            self.put(clock, entered, chosen, missing)
            queries = self.mixer.query(entered)
        mask = chosen.of(clock.masks[self.ring.size])[:, None, None]
        return self.mixer.out(attend_columns(queries, chosen.of(self.ring.table), self.mixer.num_heads, mask))


class StaticConvolution(_WithRing):
    mixer: ConvolutionStep | FullConvolutionStep

    def step(self, clock: Clock, entered: Tensor, chosen: Chosen, missing: Missing | None) -> Tensor:
        written = self.put(clock, entered, chosen, missing)
        seen = self.ring.at(chosen.of(clock.windows[self.ring.size]))
        return self.mixer.convolved(entered, written, seen, chosen.of(clock.real[self.ring.size]))


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

    def step(self, clock: Clock, entered: Tensor, chosen: Chosen, missing: Missing | None) -> Tensor:
        total = chosen.of(self.table)
        if missing is not None:
            late = missing.entered.masked_fill(~missing.is_new.unsqueeze(-1), 0)
            total = total + late.to(total.dtype).sum(1)
        total = total + entered
        chosen.put(self.table, total)
        count = (chosen.of(clock.now) + 1 - chosen.of(clock.padding)).unsqueeze(1)
        return self.mixer.mixed(entered, total, count)


def static_mixer(mixer: StepMixer[Any], arena: Arena, name: str, num_rows: int, capacity: int) -> StaticMixer:
    """A mixer with memory for so many rows and, where it sees all columns, so many columns."""
    if isinstance(mixer, AverageStep):
        return StaticAverage(mixer, arena, name, num_rows)
    size = capacity if mixer.reach is None else mixer.reach + 1
    kind = StaticAttention if isinstance(mixer, AttentionStep) else StaticConvolution
    return kind(mixer, arena, name, num_rows, size)
