"""A Triton kernel for readers that stand far apart: each is summed alone, all its taps at once."""

from typing import no_type_check

import triton
import triton.language as tl

from depthwise.kernels.triton_band import CHANGING, LOG2_E, is_kept, is_real, quick_log2, row_seed


@triton.jit(do_not_specialize=CHANGING)
@no_type_check
def convolve_alone(
    values, kernel, out, lse, valid, positions, segments, seed,
    num_outputs, num_sources, shift, dropconnect, num_blocks,
    stride_value_row, stride_value_step, stride_kernel_row, stride_kernel_step, stride_kernel_head,
    stride_lse_row, stride_lse_step, stride_valid_row,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr, TAPS_PADDED: tl.constexpr, LEFT: tl.constexpr,
    COLUMNS: tl.constexpr, SOFTMAX: tl.constexpr, RENORMALIZE: tl.constexpr, DROP: tl.constexpr, SHARED: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_POSITIONS: tl.constexpr, HAS_SEGMENTS: tl.constexpr, KEEP_LSE: tl.constexpr,
):  # fmt: skip
    """One output, some channels of one head; arguments as in ``convolve_band``, and the same result.

    All that is read is asked for at once, where a band would go through everything between its readers.
    """
    PARTS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    part = program % PARTS
    head = (program // PARTS) % HEADS
    output = (program // (PARTS * HEADS)) % num_blocks
    row = program // (PARTS * HEADS) // num_blocks
    row_long = row.to(tl.int64)
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    values += row_long * stride_value_row + head * WIDTH
    kernel += row_long * stride_kernel_row + output * stride_kernel_step + head * stride_kernel_head
    valid += row_long * stride_valid_row
    segments += row_long * num_sources

    step = output + shift
    if HAS_POSITIONS:
        step = tl.load(positions + row_long * num_outputs + output).to(tl.int32)
    taps = tl.arange(0, TAPS_PADDED)
    sources = step - LEFT + taps
    wanted = taps < TAPS
    seen = wanted & is_real(sources, num_sources, valid, HAS_VALID)
    if HAS_SEGMENTS:
        seen = seen & (tl.load(segments + sources, mask=seen, other=-2) == tl.load(segments + step))
    if RENORMALIZE:
        wanted = seen
    met_exists = seen[:, None] & (columns < WIDTH)[None, :]
    met = tl.load(values + sources[:, None] * stride_value_step + columns[None, :], mask=met_exists, other=0.0)

    if SOFTMAX:
        logits = tl.load(kernel + taps, mask=wanted, other=float("-inf")).to(tl.float32) * LOG2_E
        largest = tl.max(logits, 0)
        largest = tl.where(largest == float("-inf"), 0.0, largest)
        weights = tl.exp2(logits - largest)
        total = tl.sum(weights, 0)
        total = tl.where(total > 0, total, 1.0)
        weights = weights / total
        if KEEP_LSE and part == 0:
            place = lse + row_long * stride_lse_row + output * stride_lse_step + head
            tl.store(place, largest + quick_log2(total))
    else:
        weights = tl.load(kernel + taps, mask=wanted, other=0.0).to(tl.float32)
    if DROP:
        counter = taps * 0 + (head if SHARED else (row * num_outputs + output) * HEADS + head)
        weights = tl.where(is_kept(row_seed(seed, counter), taps, dropconnect), weights, 0.0) / (1.0 - dropconnect)
    summed = tl.sum(weights[:, None] * met.to(tl.float32), 0)
    place = out + (row_long * num_outputs + output) * (HEADS * WIDTH) + head * WIDTH + columns
    tl.store(place, summed.to(out.dtype.element_ty), mask=columns < WIDTH)
