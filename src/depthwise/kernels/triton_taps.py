"""A Triton kernel that adds up one tap after the other in registers: narrow kernels, narrow heads, single steps."""

from typing import no_type_check

import triton
import triton.language as tl

from depthwise.kernels.triton_band import CHANGING, LOG2_E, is_kept, is_real, quick_log2, row_seed


@triton.jit
@no_type_check
def tap_logits(
    kernel, steps, rows, heads, exists, tap, valid, segments, own_segment, num_sources, stride_step, stride_head,
    LEFT: tl.constexpr, SOFTMAX: tl.constexpr, RENORMALIZE: tl.constexpr, HAS_VALID: tl.constexpr,
    HAS_SEGMENTS: tl.constexpr,
):  # fmt: skip
    """Entry ``tap`` of the kernels of these rows, (rows, heads), with no weight where it must not count.

    For a softmax it is a logarithm to base 2.
    """
    wanted = exists
    if RENORMALIZE:
        met = steps - LEFT + tap
        seen = is_real(met, num_sources, valid, HAS_VALID)
        if HAS_SEGMENTS:
            seen = seen & (tl.load(segments + met, mask=seen, other=-2) == own_segment)
        wanted = wanted & seen[:, None]
    at = kernel + rows[:, None] * stride_step + heads[None, :] * stride_head + tap
    if SOFTMAX:
        return tl.load(at, mask=wanted, other=float("-inf")).to(tl.float32) * LOG2_E
    else:
        return tl.load(at, mask=wanted, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=CHANGING)
@no_type_check
def convolve_taps(
    values, kernel, out, lse, valid, positions, segments, seed,
    num_outputs, num_sources, shift, dropconnect, num_blocks,
    stride_value_row, stride_value_step, stride_kernel_row, stride_kernel_step, stride_kernel_head,
    stride_lse_row, stride_lse_step, stride_valid_row,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr, LEFT: tl.constexpr,
    ROWS: tl.constexpr, HEADS_AT_ONCE: tl.constexpr, COLUMNS: tl.constexpr,
    TRANSPOSED: tl.constexpr, SOFTMAX: tl.constexpr, RENORMALIZE: tl.constexpr, DROP: tl.constexpr,
    SHARED: tl.constexpr, HAS_VALID: tl.constexpr, HAS_POSITIONS: tl.constexpr, HAS_SEGMENTS: tl.constexpr,
    KEEP_LSE: tl.constexpr,
):  # fmt: skip
    """ROWS outputs, some heads, some channels of each; arguments as in ``convolve_band``, and the same result.

    A transposed sum cannot follow a list of positions: it would have to search the list.
    """
    PARTS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    GROUPS: tl.constexpr = (HEADS + HEADS_AT_ONCE - 1) // HEADS_AT_ONCE
    program = tl.program_id(0)
    part = program % PARTS
    group = (program // PARTS) % GROUPS
    block = (program // (PARTS * GROUPS)) % num_blocks
    row = program // (PARTS * GROUPS) // num_blocks
    row_long = row.to(tl.int64)
    outputs = block * ROWS + tl.arange(0, ROWS)
    output_exists = outputs < num_outputs
    heads = group * HEADS_AT_ONCE + tl.arange(0, HEADS_AT_ONCE)
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    head_exists = heads < HEADS
    channels = heads[:, None] * WIDTH + columns[None, :]
    channel_exists = head_exists[:, None] & (columns < WIDTH)[None, :]

    num_readers = num_sources if TRANSPOSED else num_outputs
    length = num_outputs if TRANSPOSED else num_sources
    values += row_long * stride_value_row
    kernel += row_long * stride_kernel_row
    lse += row_long * stride_lse_row
    valid += row_long * stride_valid_row
    positions += row_long * num_readers
    segments += row_long * length
    if HAS_POSITIONS:
        steps = tl.load(positions + outputs, mask=output_exists, other=0).to(tl.int32)
    elif TRANSPOSED:
        steps = outputs
    else:
        steps = outputs + shift
    own_segment = steps
    if HAS_SEGMENTS:
        own_segment = tl.load(segments + steps, mask=output_exists, other=-1)
    both_exist = output_exists[:, None] & head_exists[None, :]
    if TRANSPOSED and HAS_VALID:
        both_exist = both_exist & (tl.load(valid + steps, mask=output_exists, other=0) != 0)[:, None]

    if SOFTMAX and not TRANSPOSED:
        largest = tl.full((ROWS, HEADS_AT_ONCE), float("-inf"), dtype=tl.float32)
        for tap in range(TAPS):
            logits = tap_logits(
                kernel, steps, outputs, heads, both_exist, tap, valid, segments, own_segment, num_sources,
                stride_kernel_step, stride_kernel_head, LEFT, SOFTMAX, RENORMALIZE, HAS_VALID, HAS_SEGMENTS,
            )  # fmt: skip
            largest = tl.maximum(largest, logits)
        largest = tl.where(largest == float("-inf"), 0.0, largest)
        total = tl.zeros((ROWS, HEADS_AT_ONCE), dtype=tl.float32)
    if DROP and not TRANSPOSED:
        counter = (row * num_readers + outputs[:, None]) * HEADS + heads[None, :]
        if SHARED:
            counter = outputs[:, None] * 0 + heads[None, :]
        start = row_seed(seed, counter)

    summed = tl.zeros((ROWS, HEADS_AT_ONCE, COLUMNS), dtype=tl.float32)
    for tap in range(TAPS):
        if TRANSPOSED:
            sources = steps + (LEFT - tap) - shift
            real = (sources >= 0) & (sources < num_sources)
            if HAS_SEGMENTS:
                real = real & (tl.load(segments + sources + shift, mask=real, other=-2) == own_segment)
            wanted = both_exist & real[:, None]
            at = kernel + sources[:, None] * stride_kernel_step + heads[None, :] * stride_kernel_head + tap
            weights = tl.load(at, mask=wanted, other=0.0).to(tl.float32)
            if SOFTMAX:
                scale = tl.load(lse + sources[:, None] * stride_lse_step + heads[None, :], mask=wanted, other=0.0)
                weights = tl.exp2(weights * LOG2_E - scale)
            weights = tl.where(wanted, weights, 0.0)
            if DROP:
                counter = (row * num_readers + sources[:, None]) * HEADS + heads[None, :]
                if SHARED:
                    counter = sources[:, None] * 0 + heads[None, :]
                start = row_seed(seed, counter)
        else:
            sources = steps - LEFT + tap
            real = is_real(sources, num_sources, valid, HAS_VALID)
            if HAS_SEGMENTS:
                real = real & (tl.load(segments + sources, mask=real, other=-2) == own_segment)
            weights = tap_logits(
                kernel, steps, outputs, heads, both_exist, tap, valid, segments, own_segment, num_sources,
                stride_kernel_step, stride_kernel_head, LEFT, SOFTMAX, RENORMALIZE, HAS_VALID, HAS_SEGMENTS,
            )  # fmt: skip
            if SOFTMAX:
                weights = tl.exp2(weights - largest)
                total += weights
        if DROP:
            weights = tl.where(is_kept(start, tl.full((1, 1), 0, tl.int32) + tap, dropconnect), weights, 0.0)
        at = values + sources[:, None, None] * stride_value_step + channels[None, :, :]
        met = tl.load(at, mask=(real & output_exists)[:, None, None] & channel_exists[None, :, :], other=0.0)
        summed += weights[:, :, None] * met.to(tl.float32)

    if SOFTMAX and not TRANSPOSED:
        total = tl.where(total > 0, total, 1.0)
        summed = summed * (1.0 / total)[:, :, None]
        if KEEP_LSE and part == 0:
            place = lse + outputs[:, None] * stride_lse_step + heads[None, :]
            tl.store(place, largest + quick_log2(total), mask=both_exist)
    if DROP:
        summed = summed * (1.0 / (1.0 - dropconnect))
    place = out + row_long * num_outputs * (HEADS * WIDTH) + outputs[:, None, None] * (HEADS * WIDTH)
    tl.store(
        place + channels[None, :, :],
        summed.to(out.dtype.element_ty),
        mask=output_exists[:, None, None] & channel_exists[None, :, :],
    )
