"""Non-separable convolution: every output channel sums over every input channel and tap."""

import torch
from torch.nn import functional as F

from depthwise.kernels.windows import trailing
from depthwise.shapes import Bool, Float, Int, Tensor


def full_conv(
    x: Float[Tensor, "B L D"],
    weight: Float[Tensor, "E D K"],
    bias: Float[Tensor, "E"] | None = None,
    *,
    left: int,
    valid: Bool[Tensor, "B L"] | None = None,
    positions: Int[Tensor, "B P"] | None = None,
    num_last: int | None = None,
) -> Float[Tensor, "B _p E"]:
    """y[b, t, e] = bias[e] + sum_{k, d} weight[e, d, k] * x[b, t - left + k, d], zeros outside and on padding."""
    taps = weight.shape[-1]
    if valid is not None:
        x = x.masked_fill(~valid.unsqueeze(-1), 0)
    positions = trailing(x, positions, num_last)
    padded = F.pad(x, (0, 0, left, taps - 1 - left))
    if positions is None:
        return F.conv1d(padded.transpose(1, 2), weight, bias).transpose(1, 2)
    steps = positions.unsqueeze(-1) + torch.arange(taps, device=x.device)
    rows = torch.arange(x.shape[0], device=x.device).view(-1, 1, 1)
    return F.linear(padded[rows, steps].flatten(2), weight.transpose(1, 2).flatten(1), bias)
