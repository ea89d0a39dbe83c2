"""Which positions read, and how much of a kernel they lay on real tokens."""

import torch

from depthwise.kernels.packed import correlate_packed
from depthwise.shapes import Bool, Float, Int, Tensor


def trailing(
    x: Float[Tensor, "B L C"], positions: Int[Tensor, "B P"] | None, num_last: int | None
) -> Int[Tensor, "B P"] | None:
    """The positions that read: those given, else the last ``num_last``; none stands for every step of ``x``."""
    rows, length = x.shape[:2]
    if positions is not None or num_last is None or num_last == length:
        return positions
    return torch.arange(length - num_last, length, device=x.device).expand(rows, -1)


def covered_mass(
    x: Float[Tensor, "B L C"],
    kernel: Float[Tensor, "_b _p H K"],
    left: int,
    valid: Bool[Tensor, "B L"] | None,
    positions: Int[Tensor, "B P"] | None,
    boundaries: Int[Tensor, "_n"] | None = None,
) -> Float[Tensor, "B P C"]:
    """Per output channel, the kernel mass on real tokens: 1 where there are none, so that one may divide by it."""
    rows, length, channels = x.shape
    heads = kernel.shape[-2]
    real = x.new_ones(rows, length) if valid is None else valid.to(x.dtype)
    seen = real.unsqueeze(-1).expand(-1, -1, heads)
    mass = correlate_packed(seen, kernel, left=left, positions=positions, boundaries=boundaries)
    mass = mass.masked_fill(mass == 0, 1)
    return mass.repeat_interleave(channels // heads, dim=-1)
