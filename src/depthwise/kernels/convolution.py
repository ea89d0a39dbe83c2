"""From normalised kernels to the output of a convolution, in plain PyTorch: what both references share."""

from contextlib import AbstractContextManager, nullcontext

import torch

from depthwise.kernels.options import ConvOptions
from depthwise.kernels.packed import boundaries_of, correlate_packed
from depthwise.kernels.weights import at_least_float32, drop_connect
from depthwise.kernels.windows import covered_mass
from depthwise.shapes import Float, Tensor


def convolve(
    x: Float[Tensor, "B L C"], kernel: Float[Tensor, "_b _p H K"], options: ConvOptions
) -> Float[Tensor, "B P C"]:
    """Drop entries of the kernel, sum over taps with padding as zeros, divide by the mass on real tokens if asked.

    Axes of the kernel of size 1 are broadcast. Everything is computed in float32 at least, also under autocast, and
    returned as ``x`` came.
    """
    valid, positions, boundaries = options.valid, options.positions, options.boundaries
    if options.segments is not None:
        boundaries = boundaries_of(options.segments)
    inputs = at_least_float32(x if valid is None else x.masked_fill(~valid.unsqueeze(-1), 0))
    kernel = kernel.to(inputs.dtype)
    rows = (x.shape[0], x.shape[1] if positions is None else positions.shape[1])
    dropped = drop_connect(kernel, options.dropconnect, shared=options.dropconnect_shared, rows=rows)
    with _without_autocast(x.device.type):
        y = correlate_packed(inputs, dropped, left=options.left, positions=positions, boundaries=boundaries)
        if options.renormalize:
            y = y / covered_mass(inputs, kernel, options.left, valid, positions, boundaries)
    return y.to(x.dtype)


def _without_autocast(device_type: str) -> AbstractContextManager[None]:
    """Products in the precision of their operands, where another one is asked for."""
    if not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)
