"""Triton kernels for one kernel that serves all positions: its band is made once and meets many blocks of the input."""

from typing import no_type_check

import triton
import triton.language as tl

from depthwise.kernels.triton_band import CHANGING, LOG2_E, is_kept, is_real, load_part, on_band, row_seed
from depthwise.kernels.triton_kernel_gradient import band_of_products


@triton.jit
@no_type_check
def softmax_vector(kernel, TAPS: tl.constexpr, TAPS_PADDED: tl.constexpr):
    """Largest logit of one kernel, to base 2, and the sum of all others relative to it."""
    taps = tl.arange(0, TAPS_PADDED)
    logits = tl.load(kernel + taps, mask=taps < TAPS, other=float("-inf")).to(tl.float32) * LOG2_E
    largest = tl.max(logits, 0)
    return largest, tl.sum(tl.exp2(logits - largest), 0)


@triton.jit
@no_type_check
def own_share(PARTS: tl.constexpr, HEADS: tl.constexpr):
    """Which part of which head is this program's, and the first of its blocks."""
    program = tl.program_id(0)
    return program % PARTS, (program // PARTS) % HEADS, program // (PARTS * HEADS)


@triton.jit
@no_type_check
def band_of_weights(
    kernel, tap, dropconnect, TAPS: tl.constexpr, TAPS_PADDED: tl.constexpr, SOFTMAX: tl.constexpr, DROP: tl.constexpr
):
    """The weights of one kernel at these taps, 0 where there are none; what is not dropped later has grown already."""
    band = tl.load(kernel + tap, mask=on_band(tap, TAPS), other=float("-inf") if SOFTMAX else 0.0).to(tl.float32)
    if SOFTMAX:
        largest, total = softmax_vector(kernel, TAPS, TAPS_PADDED)
        band = tl.exp2(band * LOG2_E - largest) * (1.0 / total)
    if DROP:
        band = band * (1.0 / (1.0 - dropconnect))
    return band


@triton.jit(do_not_specialize=CHANGING)
@no_type_check
def convolve_fixed(
    values, kernel, out, valid, segments, seed,
    num_outputs, num_sources, shift, dropconnect, num_blocks, num_all_blocks, num_splits,
    stride_value_row, stride_value_step, stride_kernel_head, stride_valid_row,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr, TAPS_PADDED: tl.constexpr, LEFT: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, SPAN: tl.constexpr, COLUMNS: tl.constexpr,
    TRANSPOSED: tl.constexpr, SOFTMAX: tl.constexpr, DROP: tl.constexpr, SHARED: tl.constexpr,
    HAS_VALID: tl.constexpr, HAS_SEGMENTS: tl.constexpr,
):  # fmt: skip
    """Every ``num_splits``-th block of outputs of one head; otherwise as ``convolve_band`` with a single span.

    What weights lose when they are rounded to bfloat16 goes through the product as well: the loss is the same at all
    positions and would not average out.
    """
    PARTS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    part, head, split = own_share(PARTS, HEADS)
    local = tl.arange(0, ROWS)
    ahead = tl.arange(0, SPAN)
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    kernel += head * stride_kernel_head
    num_readers = num_sources if TRANSPOSED else num_outputs
    length = num_outputs if TRANSPOSED else num_sources

    tap = local[:, None] - ahead[None, :] + (TAPS - 1) if TRANSPOSED else ahead[None, :] - local[:, None]
    band = band_of_weights(kernel, tap, dropconnect, TAPS, TAPS_PADDED, SOFTMAX, DROP)
    IS_COARSE: tl.constexpr = values.dtype.element_ty == tl.bfloat16
    weights = band.to(values.dtype.element_ty)
    if IS_COARSE:
        rest = (band - weights.to(tl.float32)).to(values.dtype.element_ty)

    for index in range(split, num_all_blocks, num_splits):
        block = index % num_blocks
        row = index // num_blocks
        row_long = row.to(tl.int64)
        outputs = block * STEP + local
        output_exists = (local < STEP) & (outputs < num_outputs)
        if TRANSPOSED:
            sources = block * STEP - shift + (LEFT - TAPS + 1) + ahead
            real = (sources >= 0) & (sources < num_sources)
            steps, other_steps = outputs, sources + shift
        else:
            sources = block * STEP + shift - LEFT + ahead
            real = is_real(sources, num_sources, valid + row_long * stride_valid_row, HAS_VALID)
            steps, other_steps = outputs + shift, sources
        if HAS_SEGMENTS:
            numbers = segments + row_long * length
            own = tl.load(numbers + steps, mask=output_exists, other=-1)
            used = tl.load(numbers + other_steps, mask=real, other=-2)[None, :] == own[:, None]
        if DROP:
            readers = sources[None, :] if TRANSPOSED else outputs[:, None]
            counter = head + readers * 0 if SHARED else (row * num_readers + readers) * HEADS + head
            kept = is_kept(row_seed(seed, counter), tap, dropconnect)
            used = used & kept if HAS_SEGMENTS else kept
        seen = real[:, None] if COLUMNS == WIDTH else real[:, None] & (columns < WIDTH)[None, :]
        there = values + row_long * stride_value_row + head * WIDTH
        met = tl.load(there + sources[:, None] * stride_value_step + columns[None, :], mask=seen, other=0.0)
        if DROP or HAS_SEGMENTS:
            summed = tl.dot(tl.where(used, weights, 0.0), met, input_precision="ieee")
            if IS_COARSE:
                summed = tl.dot(tl.where(used, rest, 0.0), met, summed)
        else:
            summed = tl.dot(weights, met, input_precision="ieee")
            if IS_COARSE:
                summed = tl.dot(rest, met, summed)
        if TRANSPOSED and HAS_VALID:
            kept = tl.load(valid + row_long * stride_valid_row + outputs, mask=output_exists, other=0) != 0
            summed = tl.where(kept[:, None], summed, 0.0)
        written = output_exists[:, None] if COLUMNS == WIDTH else output_exists[:, None] & (columns < WIDTH)[None, :]
        here = out + row_long * num_outputs * (HEADS * WIDTH) + head * WIDTH
        place = here + outputs[:, None] * (HEADS * WIDTH) + columns[None, :]
        tl.store(place, summed.to(out.dtype.element_ty), mask=written)


@triton.jit
@no_type_check
def summed_at(total, column, row_exists, SPAN: tl.constexpr):
    """Sums along the diagonals of a tile: in each of its rows that exist the entry at ``column``, if it has that."""
    held = (column >= 0) & (column < SPAN) & row_exists[:, None]
    found = tl.gather(total, tl.minimum(tl.maximum(column, 0), SPAN - 1), 1)
    return tl.sum(tl.where(held, found, 0.0), 0)


@triton.jit(do_not_specialize=CHANGING)
@no_type_check
def fixed_kernel_gradient(
    gradient, values, out, valid, segments, seed,
    num_readers, length, shift, dropconnect, num_blocks, num_all_blocks, num_splits,
    stride_gradient_row, stride_gradient_step, stride_value_row, stride_value_step, stride_valid_row,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr, TAPS_PADDED: tl.constexpr, LEFT: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, SPAN: tl.constexpr, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr,
    DROP: tl.constexpr, SHARED: tl.constexpr, HAS_VALID: tl.constexpr, HAS_SEGMENTS: tl.constexpr,
):  # fmt: skip
    """The bands of many blocks are added up, then the diagonals of the sum: one number per tap.

    Each program takes every ``num_splits``-th block for one head and one span of the band, and writes what it found as
    (split and span, head, tap); ``finish_fixed_gradient`` adds those. No atomics, so runs repeat exactly.
    """
    program = tl.program_id(0)
    chunk = program % CHUNKS
    head = (program // CHUNKS) % HEADS
    split = program // (CHUNKS * HEADS)
    local = tl.arange(0, ROWS)
    ahead = chunk * SPAN + tl.arange(0, SPAN)
    tap = ahead[None, :] - local[:, None]

    total = tl.zeros((ROWS, SPAN), dtype=tl.float32)
    for index in range(split, num_all_blocks, num_splits):
        block = index % num_blocks
        row = index // num_blocks
        row_long = row.to(tl.int64)
        readers = block * STEP + local
        reader_exists = (local < STEP) & (readers < num_readers)
        sources = block * STEP + shift - LEFT + ahead
        real = is_real(sources, length, valid + row_long * stride_valid_row, HAS_VALID)
        here = gradient + row_long * stride_gradient_row + head * WIDTH
        there = values + row_long * stride_value_row + head * WIDTH
        change = tl.zeros((ROWS, SPAN), dtype=tl.float32) if DROP or HAS_SEGMENTS else total
        change = band_of_products(
            here, there, readers, sources, reader_exists, real, stride_gradient_step, stride_value_step, change,
            WIDTH, COLUMNS,
        )  # fmt: skip
        if HAS_SEGMENTS:
            numbers = segments + row_long * length
            own = tl.load(numbers + readers + shift, mask=reader_exists, other=-1)
            same = tl.load(numbers + sources, mask=real, other=-2)[None, :] == own[:, None]
            change = tl.where(same, change, 0.0)
        if DROP:
            counter = head + readers * 0 if SHARED else (row * num_readers + readers) * HEADS + head
            start = row_seed(seed, counter)[:, None]
            change = tl.where(is_kept(start, tap, dropconnect), change * (1.0 / (1.0 - dropconnect)), 0.0)
        if DROP or HAS_SEGMENTS:
            total += change
        else:
            total = change
    taps = tl.arange(0, TAPS_PADDED)
    column = local[:, None] + taps[None, :] - chunk * SPAN
    place = out + ((split * CHUNKS + chunk) * HEADS + head) * TAPS + taps
    tl.store(place, summed_at(total, column, local < STEP, SPAN), mask=taps < TAPS)


@triton.jit(do_not_specialize=CHANGING)
@no_type_check
def fixed_gradients(
    gradient, values, kernel, out, parts, valid,
    num_readers, length, shift, num_blocks, num_all_blocks, num_splits,
    stride_gradient_row, stride_gradient_step, stride_value_row, stride_value_step,
    stride_kernel_head, stride_valid_row,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr, TAPS_PADDED: tl.constexpr, LEFT: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, SPAN: tl.constexpr, COLUMNS: tl.constexpr,
    SOFTMAX: tl.constexpr, HAS_VALID: tl.constexpr,
):  # fmt: skip
    """Both gradients at once, so that the gradient of the output is read once: that of the input as ``convolve_fixed``.

    A block of sources meets all of its readers in a single span. What came back to those, times the band, is the
    gradient of the sources; times the sources, it is a band of products, added up as in ``fixed_kernel_gradient`` and
    written as (split and part of the head, head, tap).
    """
    PARTS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    FULL: tl.constexpr = WIDTH % COLUMNS == 0
    part, head, split = own_share(PARTS, HEADS)
    local = tl.arange(0, ROWS)
    ahead = tl.arange(0, SPAN)
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    tap = local[:, None] - ahead[None, :] + (TAPS - 1)
    kernel += head * stride_kernel_head
    band = band_of_weights(kernel, tap, 0.0, TAPS, TAPS_PADDED, SOFTMAX, False)
    IS_COARSE: tl.constexpr = gradient.dtype.element_ty == tl.bfloat16
    weights = band.to(gradient.dtype.element_ty)
    if IS_COARSE:
        rest = (band - weights.to(tl.float32)).to(gradient.dtype.element_ty)

    total = tl.zeros((ROWS, SPAN), dtype=tl.float32)
    for index in range(split, num_all_blocks, num_splits):
        block = index % num_blocks
        row = index // num_blocks
        row_long = row.to(tl.int64)
        sources = block * STEP + local
        source_exists = (local < STEP) & (sources < length)
        readers = block * STEP - shift + (LEFT - TAPS + 1) + ahead
        reader_exists = (readers >= 0) & (readers < num_readers)
        here = gradient + row_long * stride_gradient_row + head * WIDTH
        there = values + row_long * stride_value_row + head * WIDTH
        sent = load_part(here, readers, columns, reader_exists, stride_gradient_step, WIDTH, FULL)
        met = load_part(there, sources, columns, source_exists, stride_value_step, WIDTH, FULL)
        summed = tl.dot(weights, sent, input_precision="ieee")
        if IS_COARSE:
            summed = tl.dot(rest, sent, summed)
        if HAS_VALID:  # its bytes must not meet what is loaded: the compiler would keep no copies of that in flight
            real = tl.load(valid + row_long * stride_valid_row + sources, mask=source_exists, other=0) != 0
            summed = tl.where(real[:, None], summed, 0.0)
            total += tl.where(real[:, None], tl.dot(met, tl.trans(sent), input_precision="ieee"), 0.0)
        else:
            total = tl.dot(met, tl.trans(sent), total, input_precision="ieee")
        written = source_exists[:, None] if FULL else source_exists[:, None] & (columns < WIDTH)[None, :]
        place = out + row_long * length * (HEADS * WIDTH) + head * WIDTH
        place += sources[:, None] * (HEADS * WIDTH) + columns[None, :]
        tl.store(place, summed.to(out.dtype.element_ty), mask=written)
    taps = tl.arange(0, TAPS_PADDED)
    column = local[:, None] + (TAPS - 1) - taps[None, :]
    place = parts + ((split * PARTS + part) * HEADS + head) * TAPS + taps
    tl.store(place, summed_at(total, column, local < STEP, SPAN), mask=taps < TAPS)


@triton.jit(do_not_specialize=CHANGING)
@no_type_check
def finish_fixed_gradient(
    parts, kernel, out, num_parts, stride_kernel_head,
    HEADS: tl.constexpr, TAPS: tl.constexpr, TAPS_PADDED: tl.constexpr, AT_ONCE: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """Sum over the parts of one head, then through the softmax: d logits = P * (dP - sum_k P dP)."""
    head = tl.program_id(0)
    taps = tl.arange(0, TAPS_PADDED)
    change = tl.zeros((TAPS_PADDED,), dtype=tl.float32)
    for begin in range(0, num_parts, AT_ONCE):
        index = begin + tl.arange(0, AT_ONCE)
        place = parts + (index[:, None] * HEADS + head) * TAPS + taps[None, :]
        change += tl.sum(tl.load(place, mask=(index < num_parts)[:, None] & (taps < TAPS)[None, :], other=0.0), 0)
    if SOFTMAX:
        kernel += head * stride_kernel_head
        largest, total = softmax_vector(kernel, TAPS, TAPS_PADDED)
        logits = tl.load(kernel + taps, mask=taps < TAPS, other=float("-inf")).to(tl.float32)
        weights = tl.exp2(logits * LOG2_E - largest) / total
        change = weights * (change - tl.sum(weights * change, 0))
    tl.store(out + head * TAPS + taps, change.to(out.dtype.element_ty), mask=taps < TAPS)
