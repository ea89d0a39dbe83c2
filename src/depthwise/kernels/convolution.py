"""From normalised kernels to the output of a convolution, in plain PyTorch: what both references share."""

from contextlib import AbstractContextManager, nullcontext

import torch

from depthwise.kernels.packed import correlate_packed
from depthwise.kernels.weights import at_least_float32, drop_connect
from depthwise.kernels.windows import covered_mass
from depthwise.shapes import Bool, Float, Int, Tensor


def convolve(
    x: Float[Tensor, "B L C"],
    kernel: Float[Tensor, "_b _p H K"],
    left: int,
    valid: Bool[Tensor, "B L"] | None,
    positions: Int[Tensor, "B P"] | None,
    dropconnect: float,
    dropconnect_shared: bool,
    renormalize: bool,
    boundaries: Int[Tensor, "_n"] | None,
) -> Float[Tensor, "B P C"]:
    """Drop entries of the kernel, sum over taps with padding as zeros, divide by the mass on real tokens if asked.

    Axes of the kernel of size 1 are broadcast. Everything is computed in float32 at least, also under autocast, and
    returned as ``x`` came.
    """
    inputs = at_least_float32(x if valid is None else x.masked_fill(~valid.unsqueeze(-1), 0))
    kernel = kernel.to(inputs.dtype)
    rows = (x.shape[0], x.shape[1] if positions is None else positions.shape[1])
    dropped = drop_connect(kernel, dropconnect, shared=dropconnect_shared, rows=rows)
    with _without_autocast(x.device.type):
        y = correlate_packed(inputs, dropped, left=left, positions=positions, boundaries=boundaries)
        if renormalize:
            y = y / covered_mass(inputs, kernel, left, valid, positions, boundaries)
    return y.to(x.dtype)


def _without_autocast(device_type: str) -> AbstractContextManager[None]:
    """Products in the precision of their operands, on devices that know of another."""
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)
