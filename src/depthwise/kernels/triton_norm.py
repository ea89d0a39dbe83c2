"""Triton kernels for the norm of a residual sum: y = (s - mean) * rstd * weight + bias of s = x + dropout(branch).

Each pass reads its inputs once. The sum is not kept: the backward pass makes it again from x and branch, which are as
large as it would be, and asks the same hash for the same mask. Programs of the backward pass walk through many rows
and add up gradients of weight and bias on the way; ``finish_parameter_gradients`` adds theirs, in a fixed order.
"""

from typing import no_type_check

import triton
import triton.language as tl

from depthwise.kernels.triton_band import is_kept, row_seed


@triton.jit
@no_type_check
def residual_sum(
    x, branch, seed, rows, columns, place, exists, dropout, scale, HAS_BRANCH: tl.constexpr, DROP: tl.constexpr
):  # fmt: skip
    """The sum in float32, and where dropout kept the branch."""
    total = tl.load(x + place, mask=exists, other=0.0).to(tl.float32)
    kept = exists
    if HAS_BRANCH:
        added = tl.load(branch + place, mask=exists, other=0.0).to(tl.float32)
        if DROP:
            kept = is_kept(row_seed(seed, rows)[:, None], columns[None, :], dropout)
            added = tl.where(kept, added * scale, 0.0)
        total += added
    return total, kept


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def normalize_rows(
    x, branch, weight, bias, out, mean_of_rows, rstd_of_rows, seed,
    num_rows, epsilon, dropout, scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_BRANCH: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """ROWS rows, with mean and reciprocal standard deviation of each for the backward pass."""
    columns = tl.arange(0, BLOCK)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_inside = (columns < WIDTH)[None, :]
    exists = (rows < num_rows)[:, None] & is_inside
    place = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    gamma = tl.load(weight + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    beta = tl.load(bias + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)

    total, _ = residual_sum(x, branch, seed, rows, columns, place, exists, dropout, scale, HAS_BRANCH, DROP)
    mean = tl.sum(total, 1) * (1.0 / WIDTH)
    centred = tl.where(is_inside, total - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, 1) * (1.0 / WIDTH) + epsilon)
    y = centred * rstd[:, None] * gamma[None, :] + beta[None, :]
    tl.store(out + place, y.to(out.dtype.element_ty), mask=exists)
    tl.store(mean_of_rows + rows, mean, mask=rows < num_rows)
    tl.store(rstd_of_rows + rows, rstd, mask=rows < num_rows)


@triton.jit(do_not_specialize=["num_rows", "num_blocks"])
@no_type_check
def normalize_rows_backward(
    gradient, x, branch, weight, mean_of_rows, rstd_of_rows, x_gradient, branch_gradient, parts, seed,
    num_rows, num_blocks, dropout, scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_BRANCH: tl.constexpr, DROP: tl.constexpr,
    BOTH: tl.constexpr,
):  # fmt: skip
    """With n = (s - mean) * rstd and g = dy * weight:  ds = rstd * (g - mean(g) - n * mean(g * n)).

    ds is the gradient of x and, through dropout, of branch; BOTH tells that these differ. Every program leaves
    (sum dy * n, sum dy) of its rows in ``parts``.
    """
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    is_inside = columns < WIDTH
    gamma = tl.load(weight + columns, mask=is_inside, other=0.0).to(tl.float32)
    of_weight = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    of_bias = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for block in range(program, num_blocks, tl.num_programs(0)):
        rows = block * ROWS + tl.arange(0, ROWS)
        exists = (rows < num_rows)[:, None] & is_inside[None, :]
        place = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        outgoing = tl.load(gradient + place, mask=exists, other=0.0).to(tl.float32)
        mean = tl.load(mean_of_rows + rows, mask=rows < num_rows, other=0.0)
        rstd = tl.load(rstd_of_rows + rows, mask=rows < num_rows, other=0.0)
        total, kept = residual_sum(x, branch, seed, rows, columns, place, exists, dropout, scale, HAS_BRANCH, DROP)

        normalized = tl.where(exists, (total - mean[:, None]) * rstd[:, None], 0.0)
        of_weight += outgoing * normalized
        of_bias += outgoing
        scaled = outgoing * gamma[None, :]
        common = tl.sum(scaled, 1) * (1.0 / WIDTH)
        along = tl.sum(scaled * normalized, 1) * (1.0 / WIDTH)
        change = (scaled - common[:, None] - normalized * along[:, None]) * rstd[:, None]
        tl.store(x_gradient + place, change.to(x_gradient.dtype.element_ty), mask=exists)
        if BOTH:
            if DROP:
                change = tl.where(kept, change * scale, 0.0)
            tl.store(branch_gradient + place, change.to(branch_gradient.dtype.element_ty), mask=exists)
    here = parts + program * (2 * WIDTH) + columns
    tl.store(here, tl.sum(of_weight, 0), mask=is_inside)
    tl.store(here + WIDTH, tl.sum(of_bias, 0), mask=is_inside)


@triton.jit(do_not_specialize=["num_parts"])
@no_type_check
def finish_parameter_gradients(
    parts, weight_gradient, bias_gradient, num_parts,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Sums over the parts, for some columns."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_inside = columns < WIDTH
    of_weight = tl.zeros((AT_ONCE, COLUMNS), dtype=tl.float32)
    of_bias = tl.zeros((AT_ONCE, COLUMNS), dtype=tl.float32)
    for begin in range(0, num_parts, AT_ONCE):
        index = begin + tl.arange(0, AT_ONCE)
        exists = (index < num_parts)[:, None] & is_inside[None, :]
        place = parts + index[:, None] * (2 * WIDTH) + columns[None, :]
        of_weight += tl.load(place, mask=exists, other=0.0)
        of_bias += tl.load(place + WIDTH, mask=exists, other=0.0)
    tl.store(weight_gradient + columns, tl.sum(of_weight, 0).to(weight_gradient.dtype.element_ty), mask=is_inside)
    tl.store(bias_gradient + columns, tl.sum(of_bias, 0).to(bias_gradient.dtype.element_ty), mask=is_inside)
