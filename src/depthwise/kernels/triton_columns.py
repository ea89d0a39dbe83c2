"""Triton kernel for attention of single queries over columns of a memory: one program reads one head of one row.

    s_j = q k_j / sqrt(d) + m_j,    w = softmax(s),    out = sum_j w_j v_j

over the columns j of the row's memory, in blocks: what was summed so far is rescaled whenever a larger score turns up.
Columns that the mask leaves out (m_j = -inf) are not even loaded. Everything is float32 but for what lies in memory.
"""

from typing import no_type_check

import triton
import triton.language as tl

from depthwise.kernels.triton_band import LOG2_E

CHANGING = ["length", "rows_each", "stride_query_row", "stride_mask_row"]
"""Numbers that change from table to table: a kernel is not compiled anew for them."""


@triton.jit(do_not_specialize=CHANGING)
@no_type_check
def read_forward(
    queries, columns, mask, rows, out,
    length, rows_each, scale, stride_query_row, stride_mask_row, stride_row, stride_step,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, STEPS: tl.constexpr, HAS_ROWS: tl.constexpr,
):  # fmt: skip
    """A column holds the keys of all heads, then their values. ``rows`` names the row of each query, if not its own.

    ``out`` is (R, H d), dense.
    """
    program = tl.program_id(0)
    head = program % HEADS
    reader = (program // HEADS).to(tl.int64)
    row = reader
    if HAS_ROWS:
        row = tl.load(rows + reader).to(tl.int64)
    row = row // rows_each
    channels = tl.arange(0, PADDED)
    exists = channels < WIDTH
    query = tl.load(queries + reader * stride_query_row + head * WIDTH + channels, mask=exists, other=0.0)
    query = query.to(tl.float32) * (scale * LOG2_E)
    columns += row * stride_row + head * WIDTH
    mask += row * stride_mask_row
    largest = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    mixed = tl.zeros((PADDED,), tl.float32)
    for start in range(0, length, STEPS):
        steps = start + tl.arange(0, STEPS)
        added = tl.load(mask + steps, mask=steps < length, other=float("-inf")).to(tl.float32)
        seen = (added > float("-inf"))[:, None] & exists[None, :]
        places = columns + steps[:, None] * stride_step + channels[None, :]
        keys = tl.load(places, mask=seen, other=0.0).to(tl.float32)
        values = tl.load(places + HEADS * WIDTH, mask=seen, other=0.0).to(tl.float32)
        scores = tl.sum(keys * query[None, :], 1) + added * LOG2_E
        highest = tl.maximum(largest, tl.max(scores, 0))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        terms = tl.exp2(scores - base)
        shrunk = tl.exp2(largest - base)
        mixed = mixed * shrunk + tl.sum(terms[:, None] * values, 0)
        total = total * shrunk + tl.sum(terms, 0)
        largest = highest
    mixed = mixed / tl.where(total > 0, total, 1.0)
    tl.store(out + reader * (HEADS * WIDTH) + head * WIDTH + channels, mixed.to(out.dtype.element_ty), mask=exists)
