"""Mixers of a decoder in recorded rounds: one slot of each row after the other, or all of them at once."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch.nn import functional as F

from depthwise.engine.columns import RunningSum, precision_of_sums
from depthwise.engine.static_layout import Size
from depthwise.engine.static_mixers import Remembering, WithRing, asks_what_is_real
from depthwise.engine.static_slots import Slots
from depthwise.engine.static_tables import Arena
from depthwise.engine.step_attention import AttentionStep, keys_values
from depthwise.engine.step_mixers import AverageStep, ConvolutionStep, FullConvolutionStep, StepMixer, WithColumns
from depthwise.kernels.column_attention import read_columns
from depthwise.memory import Memory
from depthwise.shapes import Bool, Float, Int, Tensor


class RoundMixer(Remembering):
    """Runs columns that may be taken back. Memories keep them by their numbers, so that nothing is done for that."""

    @abstractmethod
    def step(self, slots: Slots, entered: Float[Tensor, "R D"], slot: int) -> Float[Tensor, "R D"]:
        """Write one slot of the first rows, and read for it."""

    @abstractmethod
    def chunk(self, slots: Slots, entered: Float[Tensor, "RM D"]) -> Float[Tensor, "RM D"]:
        """The same for all slots, those of a row side by side."""


class RoundAttention(WithRing, RoundMixer):
    mixer: AttentionStep

    def step(self, slots: Slots, entered: Tensor, slot: int) -> Tensor:
        queries, written = self.mixer.all_three(entered).tensor_split((self.mixer.inner,), dim=1)
        self.ring.put(slots.places(self.reach)[: len(entered), slot], written)
        mask, heads = slots.masks[self.reach][:, slot], self.mixer.num_heads
        return self.mixer.out(read_columns(queries, self.ring.table, mask, num_heads=heads))

    def chunk(self, slots: Slots, entered: Tensor) -> Tensor:
        count, heads = len(entered) // slots.num_slots, self.mixer.num_heads
        queries, written = self.mixer.all_three(entered).tensor_split((self.mixer.inner,), dim=1)
        self.ring.put(slots.places(self.reach)[:count].view(-1), written)
        return self.mixer.out(read_slots(queries, self.ring.table[:count], slots.masks[self.reach][:count], heads))


class RoundConvolution(WithRing, RoundMixer):
    mixer: ConvolutionStep | FullConvolutionStep
    reach: int

    def step(self, slots: Slots, entered: Tensor, slot: int) -> Tensor:
        count, written = len(entered), self.mixer.written(entered)
        self.ring.put(slots.places(self.reach)[:count, slot], written)
        seen, real = self._seen(slots, count)
        return self.mixer.convolved(
            entered, written, self.ring.places[seen[:, slot]], None if real is None else real[:, slot]
        )

    def chunk(self, slots: Slots, entered: Tensor) -> Tensor:
        count, written = len(entered) // slots.num_slots, self.mixer.written(entered)
        self.ring.put(slots.places(self.reach)[:count].view(-1), written)
        seen, real = self._seen(slots, count)
        return self.mixer.convolved(
            entered, written, self.ring.places[seen].flatten(0, 1), None if real is None else real.flatten(0, 1)
        )

    def _seen(self, slots: Slots, count: int) -> tuple[Int[Tensor, "R M K"], Bool[Tensor, "R M K"] | None]:
        """The places that the slots of the first rows see and, where that is asked, which of these hold tokens."""
        seen = slots.windows[:count, :, -1 - self.reach :]
        if not asks_what_is_real(self.mixer):
            return seen, None
        assert slots.real is not None
        return seen, slots.real[:count, :, -1 - self.reach :]


class RoundAverage(RoundMixer):
    """In the place of a column stands the sum of all before it."""

    reach = None

    def __init__(self, mixer: AverageStep, arena: Arena, name: str, num_rows: int, num_slots: int) -> None:
        self.mixer, self.size, self.width = mixer, num_slots + 1, mixer.mixer.hidden.in_features
        dtype = precision_of_sums(arena.like)
        self._table = arena.table(name, num_rows + 1, self.size, self.width, dtype=dtype)
        self._places: Float[Tensor, "BP C"] = self._table.view(-1, self.width)

    @property
    def table(self) -> Tensor:
        return self._table

    def load(self, like: Tensor, past: Memory, end: int) -> None:
        total = RunningSum(like, len(like), self.width)
        self.mixer.load(total, past, end)
        self._table[: len(like), end % self.size] = total.total

    def step(self, slots: Slots, entered: Tensor, slot: int) -> Tensor:
        places, count = self._of(slots, len(entered)), len(entered)
        total = self._places.index_select(0, places[:, slot]) + entered
        self._places.index_copy_(0, places[:, slot + 1], total)
        return self.mixer.mixed(entered, total, (slots.step_grid[:count, slot] + 1).unsqueeze(1))

    def chunk(self, slots: Slots, entered: Tensor) -> Tensor:
        count = len(entered) // slots.num_slots
        places = self._of(slots, count)
        before = self._places.index_select(0, places[:, 0]).unsqueeze(1)
        sums = entered.view(count, slots.num_slots, -1).to(before.dtype).cumsum(1)
        total = (before + sums).flatten(0, 1)
        self._places.index_copy_(0, places[:, 1:].flatten(), total)
        return self.mixer.mixed(entered, total, (slots.step_grid[:count].flatten() + 1).unsqueeze(1))

    def _of(self, slots: Slots, count: int) -> Int[Tensor, "R M+1"]:
        assert slots.behind is not None
        return slots.behind[:count]


def read_slots(
    queries: Float[Tensor, "RM D"], columns: Float[Tensor, "R P C"], masks: Float[Tensor, "R M P"], num_heads: int
) -> Float[Tensor, "RM D"]:
    """Attention of all slots of each row over its columns, each behind a mask of its own.

    Those of a single row are queries over the same columns in as many rows, which is what one kernel reads.
    """
    if len(columns) == 1:
        return read_columns(queries, columns.expand(len(queries), -1, -1), masks[0], num_heads=num_heads)
    keys, values = keys_values(columns, num_heads)
    split = queries.view(len(columns), -1, num_heads, keys.shape[-1]).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(split, keys, values, attn_mask=masks.unsqueeze(1))
    return mixed.transpose(1, 2).reshape(queries.shape)


def round_mixers(mixers: Sequence[StepMixer[Any]], arena: Arena, size: Size) -> tuple[list[RoundMixer], Slots]:
    """Mixers of all layers with memories for rounds, and where these keep columns."""
    assert size.num_drafted is not None
    num_slots, with_columns = size.num_drafted + 1, [each for each in mixers if isinstance(each, WithColumns)]
    convolutions = [each for each in with_columns if isinstance(each, ConvolutionStep | FullConvolutionStep)]
    slots = Slots(
        arena,
        size.num_rows,
        size.capacity,
        num_slots,
        attended={each.reach for each in with_columns if isinstance(each, AttentionStep)},
        convolved={each.reach for each in convolutions if each.reach is not None},
        asks_what_is_real=any(asks_what_is_real(each) for each in convolutions),
        sums=len(with_columns) < len(mixers),
    )

    def made(mixer: StepMixer[Any], name: str) -> RoundMixer:
        if isinstance(mixer, AverageStep):
            return RoundAverage(mixer, arena, name, size.num_rows, num_slots)
        kind = RoundAttention if isinstance(mixer, AttentionStep) else RoundConvolution
        return kind(mixer, arena, name, size.num_rows, slots.size_for(mixer.reach))

    return [made(mixer, f"memory {layer}") for layer, mixer in enumerate(mixers)], slots
