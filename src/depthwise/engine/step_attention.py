"""Attention of a decoder, one step at a time: over its own columns, and over a source."""

from functools import cached_property
from typing import Protocol

import torch
from torch.nn import functional as F

from depthwise.engine.columns import Columns
from depthwise.engine.linear_maps import Map, Packer
from depthwise.engine.rows import Pending, Rows
from depthwise.engine.step_mixers import SPREAD_FROM, Late, WithColumns
from depthwise.kernels.attention import attend
from depthwise.memory import KeyValueMemory, Memory
from depthwise.mixers import CrossAttention, SelfAttention
from depthwise.models.stack import Source
from depthwise.shapes import Bool, Float, Int, Tensor

FOLDED_FROM = 256
"""Narrowest decoder for which maps are folded into a source: below, reading them takes less time than that does."""


class AttentionStep(WithColumns):
    """Self-attention. A column is its key and its value."""

    def __init__(self, mixer: SelfAttention, pack: Packer) -> None:
        project = mixer.projections
        self.mixer, self.reach, self._pack = mixer, mixer.reach, pack
        self.num_heads, self.inner = project.num_heads, project.query.out_features
        self.width, self.out = 2 * self.inner, pack(project.out)

    @cached_property
    def all_three(self) -> Map:
        project = self.mixer.projections
        return self._pack(project.query, project.key, project.value)

    @cached_property
    def query(self) -> Map:
        return self._pack(self.mixer.projections.query)

    @cached_property
    def keys_values(self) -> Map:
        return self._pack(self.mixer.projections.key, self.mixer.projections.value)

    def written(self, entered: Tensor) -> Tensor:
        return self.keys_values(entered)

    def step(
        self,
        memory: Columns,
        entered: Tensor,
        rows: Rows,
        column: int,
        padding: Tensor | None,
        late: Late | None = None,
    ) -> Tensor:
        if late is None:
            queries, written = self.all_three(entered).tensor_split((self.inner,), dim=1)
            memory.put(column, written, rows.selection)
        else:
            self.put(memory, entered, rows, column, late)
            queries = self.query(entered)
        start = self.seen_from(column)
        seen = memory.between(start, column + 1)
        if rows.are_all:
            return self.out(self._attend(queries, seen, padding, start))
        if len(rows) < SPREAD_FROM * rows.num_all:
            padding = None if padding is None else rows.of(padding)
            return self.out(self._attend(queries, seen.index_select(0, rows.index), padding, start))
        spread = queries.new_zeros(rows.num_all, self.inner).index_copy_(0, rows.index, queries)
        return self.out(self._attend(spread, seen, padding, start).index_select(0, rows.index))

    def chunk(
        self, memory: Columns, entered: Float[Tensor, "M D"], pending: Pending, padding: Tensor | None
    ) -> Float[Tensor, "M D"]:
        queries, written = self.all_three(entered).tensor_split((self.inner,), dim=1)
        memory.put_at(pending.of_row, pending.columns, written)
        start = self.seen_from(int(pending.begins.min()))
        seen = pending.rows.of(memory.between(start, pending.end))
        mixed = attend(
            pending.grid(queries).unflatten(-1, (self.num_heads, -1)).transpose(1, 2),
            *keys_values(seen, self.num_heads),
            causal=True,
            window=self.mixer.window,
            valid=None if padding is None else self.is_real(seen, pending.rows.of(padding), start),
            positions=pending.column_grid - start,
        )
        return self.out(pending.flat(mixed.transpose(1, 2).flatten(2)))

    def _attend(self, queries: Tensor, seen: Tensor, padding: Tensor | None, start: int) -> Float[Tensor, "R D"]:
        mask = None if padding is None else mask_of(self.is_real(seen, padding, start), seen.dtype)
        return attend_columns(queries, seen, self.num_heads, mask)

    def load(self, memory: Columns, past: Memory, end: int) -> None:
        assert isinstance(past, KeyValueMemory)
        joined = torch.cat([past.keys.transpose(1, 2).flatten(2), past.values.transpose(1, 2).flatten(2)], dim=-1)
        memory.between(end - past.length, end).copy_(joined)


class SeenSource(Protocol):
    """Keys and values of sources, side by side in columns, with what is added to the scores of padding.

    Each source serves so many neighbouring rows. ``folded`` stands for all of it where there is one row alone.
    """

    @property
    def columns(self) -> Float[Tensor, "G S C"]: ...
    @property
    def mask(self) -> Float[Tensor, "G 1 1 S"] | None: ...
    @property
    def rows_each(self) -> int: ...
    @property
    def folded(self) -> "FoldedSource | None": ...


class StepCross:
    """Attention over the source; rows that belong to one source read the same memory."""

    def __init__(self, cross: CrossAttention, pack: Packer) -> None:
        self.projections = cross.projections
        self.num_heads, self._pack = cross.projections.num_heads, pack
        self.width = 2 * cross.projections.query.out_features

    @cached_property
    def query(self) -> Map:
        return self._pack(self.projections.query)

    @cached_property
    def out(self) -> Map:
        return self._pack(self.projections.out)

    @cached_property
    def _keys_values(self) -> Map:
        return self._pack(self.projections.key, self.projections.value)

    def written(self, states: Float[Tensor, "G S D"]) -> Float[Tensor, "G S C"]:
        """Keys and values of the source side by side."""
        return self._keys_values(states)

    def remembered(self, source: Source, rows_each: int) -> "SourceMemory":
        """What this layer sees of sources, each of which serves so many neighbouring rows."""
        return SourceMemory(self, source, rows_each)

    def read(
        self, x: Float[Tensor, "M D"], source: SeenSource, rows: Rows, pending: Pending | None = None
    ) -> Float[Tensor, "M D"]:
        """What states of these rows take of their sources: one of each row, or all that are pending."""
        if source.folded is not None:
            return source.folded.read(x)
        queries = self.query(x)
        if pending is None:
            return self.out(self._attend(queries, source, rows))
        return self.out(pending.flat(self._attend(pending.grid(queries), source, rows)))

    def _attend(self, queries: Float[Tensor, "R *steps D"], source: SeenSource, rows: Rows) -> Tensor:
        if rows.are_all:
            return attend_columns(queries, source.columns, self.num_heads, source.mask)
        if source.rows_each > 1 or len(rows) >= SPREAD_FROM * rows.num_all:
            everybody = queries.new_zeros(rows.num_all, *queries.shape[1:]).index_copy_(0, rows.index, queries)
            mixed = attend_columns(everybody, source.columns, self.num_heads, source.mask)
            return mixed.index_select(0, rows.index)
        mask = None if source.mask is None else source.mask.index_select(0, rows.index)
        return attend_columns(queries, source.columns.index_select(0, rows.index), self.num_heads, mask)


class SourceMemory:
    """Keys and values of the source for one layer, side by side in columns; each source serves some rows."""

    def __init__(self, cross: StepCross, source: Source, rows_each: int) -> None:
        self.columns: Float[Tensor, "G S C"] = cross.written(source.states)
        self.mask = None if source.valid is None else mask_of(source.valid, self.columns.dtype)
        self.rows_each = rows_each
        self.folded = FoldedSource(cross, self.columns[0]) if self._is_folded(cross.num_heads) else None

    def _is_folded(self, num_heads: int) -> bool:
        """Where one row reads what is smaller than the maps around it, which are too large for a near cache."""
        num_sources, length, width = self.columns.shape
        is_one = num_sources * self.rows_each == 1 and self.mask is None
        is_worth_it = width >= 2 * FOLDED_FROM and 2 * num_heads * length <= width
        return is_one and is_worth_it and _is_plain(self.columns)

    def drop(self, movers: Int[Tensor, "M"], holes: Int[Tensor, "M"], num_left: int) -> None:
        """Sources ``movers`` take the places ``holes``; then only the first ones are left."""
        for part in (self.columns, self.mask):
            if part is not None:
                part.index_copy_(0, holes, part.index_select(0, movers))
        self.columns = self.columns[:num_left]
        self.mask = None if self.mask is None else self.mask[:num_left]


class FoldedSource:
    """One short source with the maps of queries and outputs folded into it.

    q_h(x) · k_hs / sqrt(d) = x · K_hs + c_hs  with  K_hs = W_q,h' k_hs / sqrt(d),  and the heads' outputs sum up to
    sum_hs p_hs V_hs  with  V_hs = W_o,h v_hs.  A step then reads 2 H S vectors instead of two square matrices, which is
    where the time of a single row goes.
    """

    def __init__(self, cross: StepCross, columns: Float[Tensor, "S C"]) -> None:
        query, out, num_heads = cross.projections.query, cross.projections.out, cross.num_heads
        keys, values = columns.unflatten(-1, (2, num_heads, -1)).permute(1, 2, 0, 3).unbind(0)
        keys = keys * keys.shape[-1] ** -0.5
        self.num_heads = num_heads
        self.keys = torch.bmm(keys, query.weight.unflatten(0, (num_heads, -1))).flatten(0, 1)
        self.constants = (keys @ query.bias.view(num_heads, -1, 1)).flatten()
        self.values = torch.bmm(values, out.weight.unflatten(1, (num_heads, -1)).permute(1, 2, 0)).flatten(0, 1)
        self.bias = out.bias

    def read(self, x: Float[Tensor, "M D"]) -> Float[Tensor, "M D"]:
        scores = F.linear(x, self.keys, self.constants)
        shares = scores.view(len(scores), self.num_heads, -1).softmax(-1)
        return torch.addmm(self.bias, shares.view_as(scores), self.values)


def selected(source: Source, order: Tensor) -> Source:
    """Only these sources, in this order."""
    valid = None if source.valid is None else source.valid.index_select(0, order)
    return Source(source.states.index_select(0, order), valid)


def keys_values(columns: Float[Tensor, "B L C"], num_heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values (B, H, L, d) as they lie side by side in columns."""
    keys, values = columns.unflatten(-1, (2, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return keys, values


def attend_columns(
    queries: Float[Tensor, "R *steps D"],
    columns: Float[Tensor, "G L C"],
    num_heads: int,
    mask: Float[Tensor, "G 1 1 L"] | None,
) -> Float[Tensor, "R *steps D"]:
    """Attention of queries, as many for each row of columns, over all columns but for those with a mask of -inf."""
    if queries.numel() == queries.shape[-1] and mask is None and _is_plain(columns):
        return _attend_alone(queries, columns[0], num_heads)
    keys, values = keys_values(columns, num_heads)
    split = queries.view(len(columns), -1, num_heads, keys.shape[-1]).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(split, keys, values, attn_mask=mask)
    return mixed.transpose(1, 2).reshape(queries.shape)


def _attend_alone(queries: Tensor, columns: Float[Tensor, "L C"], num_heads: int) -> Tensor:
    """The same for a single query: two products, for which calls are what takes time."""
    (length, width), stride, start = columns.shape, columns.stride(0), columns.storage_offset()
    inner = width // 2
    each = inner // num_heads
    keys = columns.as_strided((num_heads, each, length), (each, 1, stride), start)
    values = columns.as_strided((num_heads, length, each), (each, stride, 1), start + inner)
    split = queries.view(num_heads, 1, each)
    scores = torch.baddbmm(split.new_empty(1, 1, 1), split, keys, beta=0, alpha=each**-0.5)
    return torch.bmm(scores.softmax(-1), values).view_as(queries)


def _is_plain(columns: Tensor) -> bool:
    """Whether products need no more care than torch's own take: on a CPU, in full precision."""
    return columns.device.type == "cpu" and columns.dtype in (torch.float32, torch.float64)


def mask_of(valid: Bool[Tensor, "B L"], dtype: torch.dtype) -> Float[Tensor, "B 1 1 L"]:
    """What is added to scores of columns: 0, or -inf for padding."""
    mask = torch.zeros(valid.shape, dtype=dtype, device=valid.device).masked_fill_(~valid, -torch.inf)
    return mask[:, None, None, :]
