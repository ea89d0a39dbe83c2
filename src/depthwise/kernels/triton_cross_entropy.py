"""Triton kernels for cross-entropy against smoothed targets: one program for each row of scores z.

With the label y, weights a of the label and b of every type, and L = log sum_v exp z_v, a row costs

    a * (L - z_y) + b * (V * L - sum_v z_v)        and        d z_v = g * (exp(z_v - L) - b - a * [v = y])

as a + V * b = 1. Scores are read once forward and once backward and raised to float32; exponentials are powers of 2. A
label that no type has is not followed: the loss of its row and the gradients of it are NaN.
"""

from typing import no_type_check

import triton
import triton.language as tl

from depthwise.kernels.triton_band import LOG2_E

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
@no_type_check
def cross_entropy_rows(
    scores, labels, losses, nlls, pivots, log_sums, of_label, of_every,
    NUM_TYPES: tl.constexpr, BLOCK: tl.constexpr, SMOOTH: tl.constexpr, IGNORED: tl.constexpr,
):  # fmt: skip
    """Loss and negative log-likelihood of one row, and for the backward pass its largest score and the logarithm (base
    2) of the sum of exponentials relative to it: apart, so that large scores cost no precision.

    Blocks of the row share one running maximum; sums are kept per lane and added up at the end. Each block is asked for
    before the one ahead of it is gone through, the first before the label is known.
    """
    row = tl.program_id(0)
    here = scores + row.to(tl.int64) * NUM_TYPES
    types = tl.arange(0, BLOCK)
    ahead = tl.load(here + types, mask=types < NUM_TYPES, other=float("-inf"))
    label = tl.load(labels + row)
    if label == IGNORED:
        tl.store(losses + row, 0.0)
        tl.store(nlls + row, 0.0)
        tl.store(pivots + row, 0.0)
        tl.store(log_sums + row, 0.0)
    else:
        largest = tl.full((), float("-inf"), dtype=tl.float32)
        exponentials = tl.zeros((BLOCK,), dtype=tl.float32)
        plain = tl.zeros((BLOCK,), dtype=tl.float32)
        for begin in range(0, NUM_TYPES, BLOCK):
            z = ahead.to(tl.float32)
            following = begin + BLOCK + types
            ahead = tl.load(here + following, mask=following < NUM_TYPES, other=float("-inf"))
            if SMOOTH:
                plain += tl.where(begin + types < NUM_TYPES, z, 0.0)
            earlier = largest
            largest = tl.maximum(earlier, tl.max(z, 0))
            pivot = tl.where(largest == float("-inf"), 0.0, largest)
            exponentials = exponentials * tl.exp2((earlier - pivot) * LOG2_E) + tl.exp2((z - pivot) * LOG2_E)
        pivot = tl.where(largest == float("-inf"), 0.0, largest)
        log_sum = tl.log2(tl.sum(exponentials, 0))
        is_known = (label >= 0) & (label < NUM_TYPES)
        z_label = tl.load(here + label, mask=is_known, other=float("nan")).to(tl.float32)
        nll = (pivot - z_label) + log_sum * LN_2
        loss = nll
        if SMOOTH:
            loss = of_label * nll + of_every * (NUM_TYPES * (pivot + log_sum * LN_2) - tl.sum(plain, 0))
        tl.store(losses + row, loss)
        tl.store(nlls + row, nll)
        tl.store(pivots + row, pivot)
        tl.store(log_sums + row, tl.where(is_known, log_sum, float("nan")))


@triton.jit
@no_type_check
def cross_entropy_rows_backward(
    gradient, scores, labels, pivots, log_sums, out, of_label, of_every,
    NUM_TYPES: tl.constexpr, BLOCK: tl.constexpr, IGNORED: tl.constexpr,
):  # fmt: skip
    """The gradient of the scores of one row, from that of the summed loss."""
    row = tl.program_id(0)
    begin_of_row = row.to(tl.int64) * NUM_TYPES
    scores += begin_of_row
    out += begin_of_row
    types = tl.arange(0, BLOCK)
    label = tl.load(labels + row)
    if label == IGNORED:
        for begin in range(0, NUM_TYPES, BLOCK):
            zeros = tl.zeros((BLOCK,), dtype=out.dtype.element_ty)
            tl.store(out + begin + types, zeros, mask=begin + types < NUM_TYPES)
    else:
        pivot = tl.load(pivots + row)
        log_sum = tl.load(log_sums + row)
        outgoing = tl.load(gradient).to(tl.float32)
        for begin in range(0, NUM_TYPES, BLOCK):
            exists = begin + types < NUM_TYPES
            z = tl.load(scores + begin + types, mask=exists, other=0.0).to(tl.float32)
            target = tl.where(begin + types == label, of_label + of_every, of_every)
            change = (tl.exp2((z - pivot) * LOG2_E - log_sum) - target) * outgoing
            tl.store(out + begin + types, change.to(out.dtype.element_ty), mask=exists)
