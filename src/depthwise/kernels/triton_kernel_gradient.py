"""Triton kernels for the gradient of the kernel weights or logits: the band of a product of gradients and inputs.

    G[p, s] = sum_c gradient[p, c] * values[s, c],      the gradient of tap k of reader p stands at s = t(p) - left + k

The product runs on the tensor cores; what lies off the band is thrown away.
"""

from typing import no_type_check

import triton
import triton.language as tl

from depthwise.kernels.triton_band import CHANGING, LOG2_E, is_kept, is_real, on_band, row_seed


@triton.jit
@no_type_check
def band_of_products(
    gradient, values, readers, sources, reader_exists, real, stride_gradient_step, stride_value_step, total,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """``total`` + G for some readers and sources; those that do not exist or are not real count as zeros."""
    for begin in tl.static_range(0, WIDTH, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        sent = gradient + readers[:, None] * stride_gradient_step + columns[None, :]
        seen = values + sources[None, :] * stride_value_step + columns[:, None]
        if WIDTH % COLUMNS == 0:
            outgoing = tl.load(sent, mask=reader_exists[:, None], other=0.0)
            met = tl.load(seen, mask=real[None, :], other=0.0)
        else:
            outgoing = tl.load(sent, mask=reader_exists[:, None] & (columns < WIDTH)[None, :], other=0.0)
            met = tl.load(seen, mask=real[None, :] & (columns < WIDTH)[:, None], other=0.0)
        total = tl.dot(outgoing, met, total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=CHANGING)
@no_type_check
def kernel_gradient(
    gradient, values, kernel, lse, out, valid, positions, segments, seed,
    num_readers, length, shift, dropconnect, num_blocks,
    stride_gradient_row, stride_gradient_step, stride_value_row, stride_value_step,
    stride_kernel_row, stride_kernel_step, stride_kernel_head, stride_valid_row,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr, LEFT: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, SPAN: tl.constexpr, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr,
    SOFTMAX: tl.constexpr, RENORMALIZE: tl.constexpr, DROP: tl.constexpr, SHARED: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_POSITIONS: tl.constexpr, HAS_SEGMENTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One kernel per reader: its gradient, through the softmax where there is one.

    d logits = P * (dP - sum_k P dP). The sum needs every tap, so where one span does not hold them all, the spans are
    walked twice.
    """
    program = tl.program_id(0)
    head = program % HEADS
    block = (program // HEADS) % num_blocks
    row = program // HEADS // num_blocks
    row_long = row.to(tl.int64)
    local = tl.arange(0, ROWS)
    readers = tl.minimum(block * STEP + local, num_readers - 1)
    reader_exists = (local < STEP) & (block * STEP + local < num_readers)
    gradient += row_long * stride_gradient_row + head * WIDTH
    values += row_long * stride_value_row + head * WIDTH
    kernel += row_long * stride_kernel_row + head * stride_kernel_head
    out += row_long * num_readers * (HEADS * TAPS) + head * TAPS
    lse += row_long * num_readers * HEADS + head
    valid += row_long * stride_valid_row
    positions += row_long * num_readers
    segments += row_long * length

    chunks = CHUNKS
    if HAS_POSITIONS:
        steps = tl.load(positions + readers).to(tl.int32)
        first = tl.min(steps, 0) - LEFT
        chunks = tl.cdiv(tl.max(steps, 0) - LEFT + TAPS - first, SPAN)
    else:
        steps = readers + shift
        first = block * STEP + shift - LEFT
    if HAS_SEGMENTS:
        own_segment = tl.load(segments + steps)
    if SOFTMAX:
        scale = tl.load(lse + readers * HEADS)
    if DROP:
        counter = head + readers * 0 if SHARED else (row * num_readers + readers) * HEADS + head
        start = row_seed(seed, counter)[:, None]

    TURNS: tl.constexpr = 2 if SOFTMAX and CHUNKS != 1 else 1
    expected = tl.zeros((ROWS,), dtype=tl.float32)
    for turn in tl.static_range(TURNS):
        for chunk in range(chunks):
            ahead = chunk * SPAN + tl.arange(0, SPAN)
            sources = first + ahead
            real = is_real(sources, length, valid, HAS_VALID)
            tap = sources[None, :] - steps[:, None] + LEFT if HAS_POSITIONS else ahead[None, :] - local[:, None]
            own = on_band(tap, TAPS)
            seen = own & real[None, :] if RENORMALIZE else own
            at = (kernel + readers * stride_kernel_step)[:, None] + tap
            if HAS_SEGMENTS:
                same = tl.load(segments + sources, mask=real, other=-2)[None, :] == own_segment[:, None]
                if RENORMALIZE:
                    seen = seen & same
            if SOFTMAX and EARLY:
                logits = tl.load(at, mask=seen, other=float("-inf"))
            change = band_of_products(
                gradient, values, readers, sources, reader_exists, real, stride_gradient_step, stride_value_step,
                tl.zeros((ROWS, SPAN), dtype=tl.float32), WIDTH, COLUMNS,
            )  # fmt: skip
            if HAS_SEGMENTS:
                change = tl.where(same, change, 0.0)
            if DROP:
                change = tl.where(is_kept(start, tap, dropconnect), change * (1.0 / (1.0 - dropconnect)), 0.0)
            if SOFTMAX:
                if not EARLY:
                    logits = tl.load(at, mask=seen, other=float("-inf"))
                weights = tl.exp2(logits.to(tl.float32) * LOG2_E - scale[:, None])
                if turn == 0:
                    expected += tl.sum(weights * change, 1)
                change = weights * (change - expected[:, None])
            if turn == TURNS - 1:
                place = (out + readers.to(tl.int64) * (HEADS * TAPS))[:, None] + tap
                tl.store(place, change.to(out.dtype.element_ty), mask=own & reader_exists[:, None])
