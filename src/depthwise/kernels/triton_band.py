"""Triton kernels that put the taps of neighbouring positions side by side and sum them on the tensor cores.

A block of ROWS outputs meets SPAN sources. Their weights form a tile with the kernel of each reader along a diagonal
and zeros elsewhere (a band), and one matrix product per block and head does what K multiply-adds per element would do:

    out[o, c] = sum_s W[o, s] * values[s, c]

forward:     o reads: t(o) is its position, s is the source it meets at tap k = s - t(o) + left, W[o, s] = w[o, k]
transposed:  o is a source and s reads, at tap k = o - t(s) + left, W[o, s] = w[s, k]: the gradient of the input

``t`` is a list of positions, or ``shift`` plus the index. Softmax and DropConnect happen while the band is made.
Sources on padding or outside the sequence are not loaded, those in another segment weigh nothing. Exponentials are
powers of 2 (a unit of the GPU), so ``lse`` holds logarithms to base 2. Files such as this one need Triton: they are
imported by each other and, when first needed, by what launches them.
"""

import os
from typing import no_type_check

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
CHANGING = [
    *("num_outputs", "num_sources", "num_readers", "length", "shift", "num_blocks", "num_all_blocks", "num_splits"),
    *("stride_kernel_row", "stride_kernel_step", "stride_kernel_head"),
    *("stride_lse_row", "stride_lse_step", "stride_valid_row", "num_parts"),
]
"""Numbers that change from batch to batch: a kernel is not compiled anew for them."""


@triton.jit
@no_type_check
def scrambled(z):
    """An integer hash of 32 bits: each input bit changes each output bit with a chance close to one half."""
    z = z ^ (z >> 16)
    z = z * 0x7FEB352D
    z = z ^ (z >> 15)
    z = z * 0x846CA68B
    return z ^ (z >> 16)


@triton.jit
@no_type_check
def row_seed(seed, counter):
    """Where the numbers of one kernel start: the drawn seed (64 bits) mixed with the index of the kernel."""
    drawn = tl.load(seed)
    low, high = drawn.to(tl.uint32), (drawn >> 32).to(tl.uint32)
    return scrambled(scrambled(counter.to(tl.uint32) ^ low) ^ high)


@triton.jit
@no_type_check
def is_kept(start, tap, dropconnect):
    """Bernoulli(1 - p) for each tap, the same whenever it is asked for: 24 bits of a hash against p."""
    bits = scrambled(start + tap.to(tl.uint32) * 0x9E3779B9) >> 8
    return bits.to(tl.float32) * (1.0 / 16777216.0) >= dropconnect


@triton.jit
@no_type_check
def is_real(step, length, valid, HAS_VALID: tl.constexpr):
    """Whether these steps exist and are no padding. ``valid`` points to the row."""
    inside = (step >= 0) & (step < length)
    if HAS_VALID:
        inside = inside & (tl.load(valid + step, mask=inside, other=0) != 0)
    return inside


@triton.jit
@no_type_check
def on_band(tap, TAPS: tl.constexpr):
    """Whether a tap exists: 0 <= tap < TAPS in one comparison."""
    return tap.to(tl.uint32) < TAPS


@triton.jit
@no_type_check
def softmax_terms(logits):
    """Of each row: its largest entry, to base 2 (0 where there is none), and the sum of all others relative to it."""
    largest = tl.max(logits, 1)
    largest = tl.where(largest == float("-inf"), 0.0, largest) * LOG2_E
    return largest, tl.sum(tl.exp2(logits * LOG2_E - largest[:, None]), 1)


@triton.jit
@no_type_check
def quick_log2(x):
    """Logarithm to base 2 of positive numbers, to 22 bits: one instruction where Triton's own takes twenty."""
    if INTERPRETED:
        return tl.log2(x)
    else:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
@no_type_check
def load_part(values, sources, columns, real, stride_value_step, WIDTH: tl.constexpr, FULL: tl.constexpr):
    """Some channels of one head at some sources; those that are not real count as zeros. FULL: all channels exist."""
    seen = real[:, None] if FULL else real[:, None] & (columns < WIDTH)[None, :]
    return tl.load(values + sources[:, None] * stride_value_step + columns[None, :], mask=seen, other=0.0)


@triton.jit
@no_type_check
def store_part(
    out, outputs, columns, output_exists, kept, summed, factor,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, FULL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Write some channels of one head, each row times its factor; where masked, rows that are not kept become 0."""
    summed = summed * factor[:, None]
    if MASKED:
        summed = tl.where(kept[:, None], summed, 0.0)
    written = output_exists[:, None] if FULL else output_exists[:, None] & (columns < WIDTH)[None, :]
    place = out + outputs[:, None] * (HEADS * WIDTH) + columns[None, :]
    tl.store(place, summed.to(out.dtype.element_ty), mask=written)


@triton.jit(do_not_specialize=CHANGING)
@no_type_check
def convolve_band(
    values, kernel, out, lse, valid, positions, segments, seed,
    num_outputs, num_sources, shift, dropconnect, num_blocks,
    stride_value_row, stride_value_step, stride_kernel_row, stride_kernel_step, stride_kernel_head,
    stride_lse_row, stride_lse_step, stride_valid_row,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr, TAPS_PADDED: tl.constexpr, LEFT: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, SPAN: tl.constexpr, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr,
    AT_ONCE: tl.constexpr, TRANSPOSED: tl.constexpr, SOFTMAX: tl.constexpr, RENORMALIZE: tl.constexpr,
    DROP: tl.constexpr, SHARED: tl.constexpr, HAS_VALID: tl.constexpr, HAS_POSITIONS: tl.constexpr,
    HAS_SEGMENTS: tl.constexpr, KEEP_LSE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One block of outputs of one head, AT_ONCE times COLUMNS channels of it.

    CHUNKS is the number of spans that hold all sources, 0 if positions decide; only a single span serves several parts.

    Rows beyond the end repeat the last one and are not stored; that saves a mask on every entry of the band. Sources
    that are not real load as zeros, whatever weight they get.
    """
    PARTS: tl.constexpr = (WIDTH + COLUMNS * AT_ONCE - 1) // (COLUMNS * AT_ONCE)
    FULL: tl.constexpr = WIDTH % (COLUMNS * AT_ONCE) == 0
    OFF_BAND: tl.constexpr = float("-inf") if SOFTMAX else 0.0
    program = tl.program_id(0)
    head = (program // PARTS) % HEADS
    part = program % PARTS
    block = (program // (PARTS * HEADS)) % num_blocks
    row = program // (PARTS * HEADS) // num_blocks
    row_long = row.to(tl.int64)

    local = tl.arange(0, ROWS)
    outputs = tl.minimum(block * STEP + local, num_outputs - 1)
    output_exists = (local < STEP) & (block * STEP + local < num_outputs)
    columns = part * (COLUMNS * AT_ONCE) + tl.arange(0, COLUMNS)
    values += row_long * stride_value_row + head * WIDTH
    out += row_long * num_outputs * (HEADS * WIDTH) + head * WIDTH
    kernel += row_long * stride_kernel_row + head * stride_kernel_head
    num_readers = num_sources if TRANSPOSED else num_outputs
    length = num_outputs if TRANSPOSED else num_sources
    lse += row_long * stride_lse_row + head
    valid += row_long * stride_valid_row
    positions += row_long * num_readers
    segments += row_long * length

    if HAS_POSITIONS and not TRANSPOSED:
        steps = tl.load(positions + outputs).to(tl.int32)
    elif TRANSPOSED:
        steps = outputs
    else:
        steps = outputs + shift
    if HAS_SEGMENTS:
        own_segment = tl.load(segments + steps)

    chunks = CHUNKS
    if HAS_POSITIONS and TRANSPOSED:
        first = 0
        chunks = tl.cdiv(num_sources, SPAN)
    elif HAS_POSITIONS:
        first = tl.min(steps, 0) - LEFT
        chunks = tl.cdiv(tl.max(steps, 0) - LEFT + TAPS - first, SPAN)
    elif TRANSPOSED:
        first = block * STEP - shift + (LEFT - TAPS + 1)
    else:
        first = block * STEP + shift - LEFT

    if SOFTMAX and not TRANSPOSED:
        largest = tl.zeros((ROWS,), dtype=tl.float32)
        total = tl.zeros((ROWS,), dtype=tl.float32)
        if CHUNKS != 1:
            taps = tl.arange(0, TAPS_PADDED)
            wanted = (taps < TAPS)[None, :]
            if RENORMALIZE:
                reached = steps[:, None] - LEFT + taps[None, :]
                wanted = wanted & is_real(reached, num_sources, valid, HAS_VALID)
                if HAS_SEGMENTS:
                    wanted = wanted & (tl.load(segments + reached, mask=wanted, other=-2) == own_segment[:, None])
            every = kernel + outputs[:, None] * stride_kernel_step + taps[None, :]
            logits = tl.load(every, mask=wanted, other=float("-inf"))
            largest, total = softmax_terms(logits.to(tl.float32))
    if DROP and not TRANSPOSED:
        counter = head + outputs * 0 if SHARED else (row * num_readers + outputs) * HEADS + head
        start = row_seed(seed, counter)[:, None]

    MASKED: tl.constexpr = TRANSPOSED and HAS_VALID
    kept = output_exists
    if MASKED:
        kept = tl.load(valid + steps) != 0
    factor = tl.full((ROWS,), 1.0, dtype=tl.float32)
    if DROP:
        factor = factor / (1.0 - dropconnect)
    summed = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for chunk in range(chunks):
        ahead = chunk * SPAN + tl.arange(0, SPAN)
        sources = first + ahead
        if TRANSPOSED:  # the tile lies on its side, so that kernels run along its rows here too
            real = (sources >= 0) & (sources < num_sources)
            readers = tl.minimum(tl.maximum(sources, 0), num_sources - 1)
            if HAS_POSITIONS:
                reader_steps = tl.load(positions + readers).to(tl.int32)
                tap = steps[None, :] - reader_steps[:, None] + LEFT
            else:
                reader_steps = readers + shift
                tap = local[None, :] - ahead[:, None] + (TAPS - 1)
            if HAS_SEGMENTS:
                same = tl.load(segments + reader_steps)[:, None] == own_segment[None, :]
            at = (kernel + readers * stride_kernel_step)[:, None] + tap
            hit = on_band(tap, TAPS)
            if RENORMALIZE:  # the weight of a tap that its reader did not see may be too large a number
                hit = hit & real[:, None] & (kept & output_exists)[None, :]
        else:
            real = is_real(sources, num_sources, valid, HAS_VALID)
            tap = sources[None, :] - steps[:, None] + LEFT if HAS_POSITIONS else ahead[None, :] - local[:, None]
            at = (kernel + outputs * stride_kernel_step)[:, None] + tap
            hit = on_band(tap, TAPS)
            if HAS_SEGMENTS:
                same = tl.load(segments + sources, mask=real, other=-2)[None, :] == own_segment[:, None]
            if RENORMALIZE:
                hit = hit & real[None, :]
                if HAS_SEGMENTS:
                    hit = hit & same
        weights = tl.load(at, mask=hit, other=OFF_BAND).to(tl.float32)
        if EARLY:  # so that kernels and inputs are on their way together
            met = load_part(values, sources, columns, real, stride_value_step, WIDTH, FULL)
            if AT_ONCE > 1:
                met_next = load_part(values, sources, columns + COLUMNS, real, stride_value_step, WIDTH, FULL)
        if SOFTMAX and TRANSPOSED:
            weights = tl.exp2(weights * LOG2_E - tl.load(lse + readers * stride_lse_step)[:, None])
        elif SOFTMAX:
            if CHUNKS == 1:
                largest, total = softmax_terms(weights)
            weights = tl.exp2(weights * LOG2_E - largest[:, None])
        if HAS_SEGMENTS:
            weights = tl.where(same, weights, 0.0)
        if DROP:
            if TRANSPOSED:
                counter = head + readers * 0 if SHARED else (row * num_readers + readers) * HEADS + head
                start = row_seed(seed, counter)[:, None]
            weights = tl.where(is_kept(start, tap, dropconnect), weights, 0.0)

        weights = weights.to(values.dtype.element_ty)
        if TRANSPOSED:
            weights = tl.trans(weights)
        if CHUNKS == 1:
            if SOFTMAX and not TRANSPOSED:
                factor = factor / tl.where(total > 0, total, 1.0)
            for turn in tl.static_range(AT_ONCE):
                at_once = columns + turn * COLUMNS
                if EARLY and turn == 1:
                    met = met_next
                elif not EARLY or turn > 1:
                    met = load_part(values, sources, at_once, real, stride_value_step, WIDTH, FULL)
                summed = tl.dot(weights, met, input_precision="ieee")
                store_part(out, outputs, at_once, output_exists, kept, summed, factor, HEADS, WIDTH, FULL, MASKED)
        else:
            met = load_part(values, sources, columns, real, stride_value_step, WIDTH, FULL)
            summed = tl.dot(weights, met, summed, input_precision="ieee")

    if SOFTMAX and not TRANSPOSED:
        total = tl.where(total > 0, total, 1.0)
        if CHUNKS != 1:
            factor = factor / total
        if KEEP_LSE and part == 0:
            tl.store(lse + outputs * stride_lse_step, largest + quick_log2(total), mask=output_exists)
    if CHUNKS != 1:
        store_part(out, outputs, columns, output_exists, kept, summed, factor, HEADS, WIDTH, FULL, MASKED)
