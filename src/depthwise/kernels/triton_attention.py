"""Triton kernels for attention over short sequences: one program holds all scores of one head of one row.

    s[i, j] = q_i k_j / sqrt(d),  w = softmax(s) over the steps j that reader i sees,  out_i = sum_j m[i, j] w[i, j] v_j

with m = Bernoulli(1 - p) / (1 - p) for dropout. All keys are at hand at once, so that nothing is kept from the forward
pass: the backward pass makes weights and masks again, in the same way, and needs neither the output nor its softmax's
sums. With g the gradient of the output and c[i, j] = m[i, j] (g_i v_j):

    dv_j = sum_i m[i, j] w[i, j] g_i,    ds[i, j] = w[i, j] (c[i, j] - sum_l w[i, l] c[i, l]),
    dq_i = sum_j ds[i, j] k_j / sqrt(d),    dk_j = sum_i ds[i, j] q_i / sqrt(d)

Products take half precision to float32 on the tensor cores; all else is float32. A reader that sees nothing gets zeros
and passes no gradient on. Rows of a tile beyond the end load as zeros: as readers they bring no gradient, as steps
nobody sees them.
"""

from typing import no_type_check

import triton
import triton.language as tl

from depthwise.kernels.triton_band import LOG2_E, is_kept, row_seed

CHANGING = ["num_queries", "length", "before", "after", "stride_valid_row"]
"""Numbers that change from batch to batch or from layer to layer: a kernel is not compiled anew for them."""


@triton.jit
@no_type_check
def load_rows(states, rows, num_rows, stride_step, WIDTH: tl.constexpr):
    """Some steps of one head, (rows, WIDTH)."""
    columns = tl.arange(0, WIDTH)
    place = states + rows[:, None] * stride_step + columns[None, :]
    return tl.load(place, mask=(rows < num_rows)[:, None], other=0.0)


@triton.jit
@no_type_check
def store_rows(out, rows, num_rows, stride_step, states, WIDTH: tl.constexpr):
    """The same, written."""
    columns = tl.arange(0, WIDTH)
    place = out + rows[:, None] * stride_step + columns[None, :]
    tl.store(place, states.to(out.dtype.element_ty), mask=(rows < num_rows)[:, None])


@triton.jit
@no_type_check
def exponentials(
    queries, keys, valid, num_queries, length, before, after, scale,
    READERS: tl.constexpr, STEPS: tl.constexpr, IS_SELF: tl.constexpr, HAS_VALID: tl.constexpr, LIMITED: tl.constexpr,
):  # fmt: skip
    """The softmax of every reader, (READERS, STEPS), relative to its largest entry, and the sum of that, never 0.

    A reader sees steps that are no padding and, if that is limited, at most ``before`` steps back and ``after`` ahead.
    In its own sequence, where readers are the last steps, it also sees itself. ``valid`` points to the row.
    """
    steps = tl.arange(0, STEPS)
    exists = steps < length
    seen = exists[None, :]
    if IS_SELF:
        distance = (tl.arange(0, READERS) + (length - num_queries))[:, None] - steps[None, :]
    if HAS_VALID:
        real = (tl.load(valid + steps, mask=exists, other=0) != 0)[None, :]
        if IS_SELF:
            real = real | (distance == 0)
        seen = seen & real
    if LIMITED:
        seen = seen & (distance <= before) & (distance >= -after)
    scores = tl.dot(queries, tl.trans(keys)) * (scale * LOG2_E)
    scores = tl.where(seen, scores, float("-inf"))
    largest = tl.max(scores, 1)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    terms = tl.exp2(scores - largest[:, None])
    total = tl.sum(terms, 1)
    return terms, tl.where(total > 0, total, 1.0)


@triton.jit
@no_type_check
def kept_weights(seed, program, num_queries, dropout, READERS: tl.constexpr, STEPS: tl.constexpr):
    """Which weights dropout leaves, (READERS, STEPS): the same in both passes."""
    start = row_seed(seed, program * num_queries + tl.arange(0, READERS))
    return is_kept(start[:, None], tl.arange(0, STEPS)[None, :], dropout)


@triton.jit(do_not_specialize=CHANGING)
@no_type_check
def attend_forward(
    queries, keys, values, out, valid, seed,
    num_queries, length, before, after, dropout, gain, scale, stride_valid_row,
    stride_query_row, stride_query_head, stride_query_step,
    stride_key_row, stride_key_head, stride_key_step,
    stride_value_row, stride_value_head, stride_value_step,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, READERS: tl.constexpr, STEPS: tl.constexpr,
    IS_SELF: tl.constexpr, HAS_VALID: tl.constexpr, LIMITED: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """One head of one row. ``out`` is (B, P, H, d), dense; ``gain`` is 1 / (1 - dropout)."""
    program = tl.program_id(0)
    head = program % HEADS
    row = (program // HEADS).to(tl.int64)
    readers = tl.arange(0, READERS)
    steps = tl.arange(0, STEPS)
    queries += row * stride_query_row + head * stride_query_head
    keys += row * stride_key_row + head * stride_key_head
    values += row * stride_value_row + head * stride_value_head
    out += row * num_queries * (HEADS * WIDTH) + head * WIDTH
    q = load_rows(queries, readers, num_queries, stride_query_step, WIDTH)
    k = load_rows(keys, steps, length, stride_key_step, WIDTH)
    v = load_rows(values, steps, length, stride_value_step, WIDTH)
    terms, total = exponentials(
        q, k, valid + row * stride_valid_row, num_queries, length, before, after, scale,
        READERS, STEPS, IS_SELF, HAS_VALID, LIMITED,
    )  # fmt: skip
    if DROP:
        terms = tl.where(kept_weights(seed, program, num_queries, dropout, READERS, STEPS), terms, 0.0)
    mixed = tl.dot(terms.to(v.dtype), v) * (gain / total)[:, None]
    store_rows(out, readers, num_queries, HEADS * WIDTH, mixed, WIDTH)


@triton.jit(do_not_specialize=CHANGING)
@no_type_check
def attend_backward(
    gradient, queries, keys, values, query_gradient, key_gradient, value_gradient, valid, seed,
    num_queries, length, before, after, dropout, gain, scale, stride_valid_row,
    stride_gradient_row, stride_gradient_head, stride_gradient_step,
    stride_query_row, stride_query_head, stride_query_step,
    stride_key_row, stride_key_head, stride_key_step,
    stride_value_row, stride_value_head, stride_value_step,
    stride_query_gradient, stride_key_gradient, stride_value_gradient,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, READERS: tl.constexpr, STEPS: tl.constexpr, RELOAD: tl.constexpr,
    IS_SELF: tl.constexpr, HAS_VALID: tl.constexpr, LIMITED: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """All three gradients of one head of one row, written as (B, steps, H, d) with their own strides from step to step.

    RELOAD: tiles are so large that only the two of one product are held at a time, and read again for the next.
    """
    program = tl.program_id(0)
    head = program % HEADS
    row = (program // HEADS).to(tl.int64)
    readers = tl.arange(0, READERS)
    steps = tl.arange(0, STEPS)
    gradient += row * stride_gradient_row + head * stride_gradient_head
    queries += row * stride_query_row + head * stride_query_head
    keys += row * stride_key_row + head * stride_key_head
    values += row * stride_value_row + head * stride_value_head
    query_gradient += row * num_queries * stride_query_gradient + head * WIDTH
    key_gradient += row * length * stride_key_gradient + head * WIDTH
    value_gradient += row * length * stride_value_gradient + head * WIDTH
    q = load_rows(queries, readers, num_queries, stride_query_step, WIDTH)
    k = load_rows(keys, steps, length, stride_key_step, WIDTH)
    if not RELOAD:
        g = load_rows(gradient, readers, num_queries, stride_gradient_step, WIDTH)
    weights, total = exponentials(
        q, k, valid + row * stride_valid_row, num_queries, length, before, after, scale,
        READERS, STEPS, IS_SELF, HAS_VALID, LIMITED,
    )  # fmt: skip
    if not RELOAD:  # any earlier, and fewer programs would share a processor: registers
        v = load_rows(values, steps, length, stride_value_step, WIDTH)
    weights *= (1.0 / total)[:, None]
    used = weights
    if DROP:
        kept = kept_weights(seed, program, num_queries, dropout, READERS, STEPS)
        used = tl.where(kept, weights * gain, 0.0)
    if RELOAD:
        g = load_rows(gradient, readers, num_queries, stride_gradient_step, WIDTH)
    of_values = tl.dot(tl.trans(used.to(g.dtype)), g)
    store_rows(value_gradient, steps, length, stride_value_gradient, of_values, WIDTH)
    if RELOAD:
        g = load_rows(gradient, readers, num_queries, stride_gradient_step, WIDTH)
        v = load_rows(values, steps, length, stride_value_step, WIDTH)
    changes = tl.dot(g, tl.trans(v))
    if DROP:
        changes = tl.where(kept, changes * gain, 0.0)
    changes = weights * (changes - tl.sum(weights * changes, 1)[:, None])
    changes = changes.to(q.dtype)
    if RELOAD:
        k = load_rows(keys, steps, length, stride_key_step, WIDTH)
    of_queries = tl.dot(changes, k) * scale
    store_rows(query_gradient, readers, num_queries, stride_query_gradient, of_queries, WIDTH)
    if RELOAD:
        q = load_rows(queries, readers, num_queries, stride_query_step, WIDTH)
    of_keys = tl.dot(tl.trans(changes), q) * scale
    store_rows(key_gradient, steps, length, stride_key_gradient, of_keys, WIDTH)
