"""Scaled dot-product attention over a memory, unlimited or within a window."""

from contextlib import AbstractContextManager
from functools import reduce
from operator import and_

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from depthwise.kernels.backend import pick_attention
from depthwise.kernels.short_attention import Sight, attend_short
from depthwise.shapes import Bool, Float, Int, Tensor


def attend(
    queries: Float[Tensor, "B H P d"],
    keys: Float[Tensor, "B H L d"],
    values: Float[Tensor, "B H L d"],
    *,
    causal: bool,
    window: int | None = None,
    valid: Bool[Tensor, "B L"] | None = None,
    positions: Int[Tensor, "B P"] | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "B H P d"]:
    """softmax(q k / sqrt(d)) v over the keys that a query may see      (Vaswani et al. 2017, eq. 1).

    A query at step i (its entry in ``positions``; else queries are the last P steps) sees step j where
    0 <= i - j < window (causal) or |i - j| <= (window - 1) / 2, and where j is no padding. It always sees itself, so
    that padding, whose output nobody uses, stays finite. ``backend.pick_attention`` tells which kernels run.
    """
    chosen = pick_attention(backend, queries, keys, values, valid, listed=positions is not None, is_self=True)
    if chosen == "triton":
        return attend_short(queries, keys, values, valid, Sight.within(window, causal=causal), dropout)
    num_queries, length = queries.shape[2], keys.shape[2]
    everything = valid is None and window is None and (not causal or (positions is None and num_queries == 1))
    if everything or (causal and valid is None and window is None and positions is None and num_queries == length):
        return F.scaled_dot_product_attention(
            queries, keys, values, dropout_p=dropout, is_causal=causal and not everything
        )
    seen = sight(num_queries, length, keys.device, causal, window, valid, positions)
    assert seen is not None, "there is a limit, or everything is seen"
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen.unsqueeze(1), dropout_p=dropout)


def sight(
    num_queries: int,
    length: int,
    device: torch.device,
    causal: bool,
    window: int | None,
    valid: Bool[Tensor, "B L"] | None,
    positions: Int[Tensor, "B P"] | None,
) -> Bool[Tensor, "_b P L"] | None:
    """Which keys a query may see, as ``attend`` says it; none means all."""
    steps = torch.arange(length, device=device)
    readers = steps[length - num_queries :].unsqueeze(0) if positions is None else positions
    distance = readers.unsqueeze(-1) - steps
    limits = [distance >= 0] if causal else []
    if window is not None:
        limits.append(distance < window if causal else distance.abs() <= (window - 1) // 2)
    if valid is not None:
        limits.append(valid.unsqueeze(1))
    return reduce(and_, limits) | (distance == 0) if limits else None


def attend_source(
    queries: Float[Tensor, "B H P d"],
    keys: Float[Tensor, "B H S d"],
    values: Float[Tensor, "B H S d"],
    *,
    valid: Bool[Tensor, "B S"] | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "B H P d"]:
    """Attention of every query over the real tokens of another sequence; zeros where it has none."""
    if pick_attention(backend, queries, keys, values, valid, listed=False, is_self=False) == "triton":
        return attend_short(queries, keys, values, valid, Sight(), dropout)
    mask = None if valid is None else valid[:, None, None, :]
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout)


def for_changing_lengths() -> AbstractContextManager[None]:
    """Within it, attention costs as much at a new length as at a known one.

    The implementation of cuDNN, which torch prefers on recent GPUs, first plans its work for every new shape. Where
    every batch has its own length that takes longer than the work.
    """
    kept = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    context: AbstractContextManager[None] = sdpa_kernel(kept)
    return context
