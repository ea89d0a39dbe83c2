"""Mixers of a decoder, one step at a time: each keeps what its layer remembers and reads it for the newest column.

The arithmetic is that of ``mixers``, on exactly the columns that are seen. What the rest of a layer needs is the same
for all: ``write`` for columns that were left out, ``step`` for the newest one, ``chunk`` for several at once.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch.nn import functional as F

from depthwise.engine.columns import Columns, RunningSum, SumsByColumn
from depthwise.engine.linear_maps import Packer
from depthwise.engine.rows import Pending, Rows
from depthwise.kernels import normalize
from depthwise.kernels.weights import at_least_float32
from depthwise.memory import AverageMemory, InputMemory, Memory
from depthwise.mixers import CNN, AverageAttention, DynamicConv, LightConv
from depthwise.mixers.projected import ProjectedConv
from depthwise.shapes import Bool, Float, Int, Tensor

Sums = RunningSum | SumsByColumn
M = TypeVar("M")

SPREAD_FROM = 0.4
"""Share of rows from which on attention reads the memories of all of them: copying those of some takes longer."""


@dataclass(frozen=True)
class Late:
    """Places that are written only now, with the states that enter the mixer there."""

    entered: Float[Tensor, "M D"]
    rows: Int[Tensor, "M"]
    columns: Int[Tensor, "M"]


class StepMixer(ABC, Generic[M]):
    """The mixer of one layer with weights ready for steps. It holds no state: ``memory`` makes that of a decoding."""

    reach: int | None
    """How many earlier columns are seen; none for all."""
    folds = False
    """Whether columns are folded into one as they come, so that none may be left out for being old."""

    @abstractmethod
    def memory(self, like: Tensor, num_rows: int, slack: int, *, rewinds: bool = False) -> M:
        """An empty memory. ``slack`` is how far behind the newest column a reader may stand.

        ``rewinds`` says whether columns, as many as that, may be taken back and written again.
        """

    @abstractmethod
    def write(self, memory: M, late: Late) -> None:
        """Write single places."""

    @abstractmethod
    def step(
        self, memory: M, entered: Tensor, rows: Rows, column: int, padding: Tensor | None, late: Late | None
    ) -> Float[Tensor, "R D"]:
        """Write the newest column of some rows, together with what comes late, and read for it.

        ``padding`` counts the columns before the first token of each row.
        """

    @abstractmethod
    def chunk(
        self, memory: M, entered: Float[Tensor, "M D"], pending: Pending, padding: Tensor | None
    ) -> Float[Tensor, "M D"]:
        """The same for all columns that are pending."""

    @abstractmethod
    def load(self, memory: M, past: Memory, end: int) -> None:
        """Take over what the masked executor remembers of the columns before ``end``."""


class WithColumns(StepMixer[Columns]):
    """Mixers that remember a vector of every column."""

    width: int
    mixer: Any

    def memory(self, like: Tensor, num_rows: int, slack: int, *, rewinds: bool = False) -> Columns:
        return Columns(like, num_rows, self.width, None if self.reach is None else self.reach + slack)

    @abstractmethod
    def written(self, entered: Float[Tensor, "... D"]) -> Float[Tensor, "... C"]:
        """What columns leave behind."""

    def write(self, memory: Columns, late: Late) -> None:
        memory.put_at(late.rows, late.columns, self.written(late.entered))

    def put(self, memory: Columns, entered: Tensor, rows: Rows, column: int, late: Late | None) -> Tensor:
        """Write the newest column and what comes late, in one product; returns what the newest column left."""
        if late is None:
            written = self.written(entered)
        else:
            earlier, written = self.written(torch.cat([late.entered, entered])).split([len(late.rows), len(rows)])
            memory.put_at(late.rows, late.columns, earlier)
        memory.put(column, written, rows.selection)
        return written

    def is_real(self, seen: Tensor, padding: Int[Tensor, "R"], start: int) -> Bool[Tensor, "R L"]:
        """Which of the columns from ``start`` on are no padding."""
        return torch.arange(start, start + seen.shape[1], device=seen.device) >= padding.unsqueeze(1)

    def seen_from(self, column: int) -> int:
        """The first column that is seen from this one."""
        return 0 if self.reach is None else max(0, column - self.reach)


class _WithInputs(WithColumns):
    """Mixers that remember what enters a convolution; that of padding is 0."""

    asks_what_is_real = False
    """Whether a step has to know which of the columns that it sees are tokens."""

    @abstractmethod
    def convolved(
        self,
        entered: Float[Tensor, "M D"],
        written: Float[Tensor, "M C"],
        seen: Float[Tensor, "M L C"],
        real: Bool[Tensor, "M L"] | None,
    ) -> Float[Tensor, "M D"]:
        """What columns take of the last L up to their own; ``real`` says which of these are tokens, none that all are
        or that nobody asks.

        Fewer than the kernel is wide stand at the beginning of a text.
        """

    def step(
        self,
        memory: Columns,
        entered: Tensor,
        rows: Rows,
        column: int,
        padding: Tensor | None,
        late: Late | None = None,
    ) -> Tensor:
        written = self.put(memory, entered, rows, column, late)
        start = self.seen_from(column)
        seen = rows.of(memory.between(start, column + 1))
        real = None
        if padding is not None and self.asks_what_is_real:
            real = self.is_real(seen, rows.of(padding), start)
        return self.convolved(entered, written, seen, real)

    def chunk(
        self, memory: Columns, entered: Float[Tensor, "M D"], pending: Pending, padding: Tensor | None
    ) -> Float[Tensor, "M D"]:
        assert self.reach is not None
        written = self.written(entered)
        memory.put_at(pending.of_row, pending.columns, written)
        window = torch.arange(-self.reach, 1, device=entered.device)
        columns = pending.columns.unsqueeze(1) + window
        first = 0 if padding is None else padding.index_select(0, pending.of_row).unsqueeze(1)
        real = columns >= first
        start = self.seen_from(int(pending.begins.min()))
        seen = memory.at(pending.of_row.unsqueeze(1), columns.clamp(min=start))
        return self.convolved(entered, written, seen.masked_fill(~real.unsqueeze(-1), 0), real)

    def load(self, memory: Columns, past: Memory, end: int) -> None:
        assert isinstance(past, InputMemory)
        inputs = past.inputs if past.valid is None else past.inputs.masked_fill(~past.valid.unsqueeze(-1), 0)
        memory.between(end - past.length, end).copy_(inputs)


class ConvolutionStep(_WithInputs):
    """Light and dynamic convolution. A column is its projected, gated input; that of padding is 0."""

    def __init__(self, mixer: ProjectedConv, pack: Packer) -> None:
        assert isinstance(mixer, LightConv | DynamicConv)
        self.mixer, self.options, self.reach = mixer, mixer.options, mixer.reach
        self.width = mixer.options.channels
        self.into, self.out = pack(mixer.in_projection), pack(mixer.out_projection)
        self.asks_what_is_real = mixer.options.renormalize_padding
        self.is_dynamic = isinstance(mixer, DynamicConv)
        if isinstance(mixer, DynamicConv):
            self.predict = pack(mixer.kernel)
        else:
            self.kernel = normalize(mixer.weight.detach(), self.options.normalization).unsqueeze(0)
            self.taps = self.kernel[0].repeat_interleave(self.width // self.options.num_heads, dim=0).t().contiguous()

    def written(self, entered: Tensor) -> Tensor:
        x = self.into(entered)
        return F.glu(x) if self.options.glu else x

    def convolved(self, entered: Tensor, written: Tensor, seen: Tensor, real: Tensor | None) -> Tensor:
        seen = at_least_float32(seen)
        if not (self.is_dynamic or self.options.renormalize_padding):
            mixed = (seen * self.taps[self.options.kernel_size - seen.shape[1] :].to(seen.dtype)).sum(1)
            return self._left(entered, mixed)
        kernel = self._kernels(entered, written)[..., self.options.kernel_size - seen.shape[1] :].to(seen.dtype)
        by_head = seen.unflatten(-1, (self.options.num_heads, -1))
        mixed = (by_head * kernel.transpose(1, 2).unsqueeze(-1)).sum(1).flatten(1)
        if self.options.renormalize_padding:
            mass = (kernel if real is None else kernel * real.unsqueeze(1)).sum(-1)
            mass = mass.masked_fill(mass == 0, 1).repeat_interleave(self.width // self.options.num_heads, dim=-1)
            mixed = mixed / mass
        return self._left(entered, mixed)

    def _left(self, entered: Tensor, mixed: Tensor) -> Tensor:
        mixed = mixed.to(entered.dtype)
        return self.out(mixed if self.mixer.conv_bias is None else mixed + self.mixer.conv_bias)

    def _kernels(self, entered: Tensor, written: Tensor) -> Float[Tensor, "_r H K"]:
        if not self.is_dynamic:
            return self.kernel
        assert isinstance(self.mixer, DynamicConv)
        logits = self.predict(entered if self.mixer.from_layer_input else written)
        return normalize(logits.unflatten(-1, (self.options.num_heads, -1)), self.options.normalization)


class FullConvolutionStep(_WithInputs):
    """A convolution that is not separable. A column is its input."""

    def __init__(self, mixer: CNN, pack: Packer) -> None:
        self.mixer, self.reach, self.width = mixer, mixer.reach, mixer.weight.shape[1]
        self.taps = pack.weights(mixer.weight.detach().transpose(1, 2).flatten(1), mixer.bias)

    def written(self, entered: Tensor) -> Tensor:
        return entered

    def convolved(self, entered: Tensor, written: Tensor, seen: Tensor, real: Tensor | None) -> Tensor:
        assert self.reach is not None
        return self.taps(F.pad(seen, (0, 0, self.reach + 1 - seen.shape[1], 0)).flatten(1))


class AverageStep(StepMixer[Sums]):
    """Average attention. Columns are folded into their sum."""

    reach = None
    folds = True

    def __init__(self, mixer: AverageAttention, pack: Packer) -> None:
        self.mixer = mixer
        self.hidden, self.out, self.gates = pack(mixer.hidden), pack(mixer.out), pack(mixer.gates)

    def memory(self, like: Tensor, num_rows: int, slack: int, *, rewinds: bool = False) -> Sums:
        width = self.mixer.hidden.in_features
        return SumsByColumn(like, num_rows, width, slack) if rewinds else RunningSum(like, num_rows, width)

    def write(self, memory: Sums, late: Late) -> None:
        assert isinstance(memory, RunningSum), "where columns are taken back, none comes late"
        memory.add(late.rows, late.entered)

    def step(
        self,
        memory: Sums,
        entered: Tensor,
        rows: Rows,
        column: int,
        padding: Tensor | None,
        late: Late | None = None,
    ) -> Tensor:
        if late is not None:
            self.write(memory, late)
        total = memory.advance(rows, column, entered)
        count: Tensor | int = column + 1 if padding is None else (column + 1 - rows.of(padding)).unsqueeze(1)
        return self.mixed(entered, total, count)

    def mixed(self, entered: Tensor, total: Float[Tensor, "R D"], count: Tensor | int) -> Float[Tensor, "R D"]:
        """What columns take of sums of so many, their own included."""
        mean = (total / count).to(entered.dtype)
        context = self.out(F.relu(self.hidden(mean)))
        keep, take = self.gates(torch.cat([entered, context], dim=-1)).sigmoid().chunk(2, dim=-1)
        return keep * entered + take * context

    def chunk(
        self, memory: Sums, entered: Float[Tensor, "M D"], pending: Pending, padding: Tensor | None
    ) -> Float[Tensor, "M D"]:
        grid, is_new, rows = pending.grid(entered), pending.is_there, pending.rows
        before = pending.column_grid[:, :1]
        before = before if padding is None else before - rows.of(padding).unsqueeze(1)
        total = memory.before(pending)
        mixed: Tensor = self.mixer.read(grid, AverageMemory(grid, is_new, (total, before.to(total.dtype))))
        memory.extend(pending, grid)
        return pending.flat(mixed)

    def load(self, memory: Sums, past: Memory, end: int) -> None:
        assert isinstance(past, AverageMemory)
        assert past.before is not None
        memory.begin_from(past.before[0], end)
