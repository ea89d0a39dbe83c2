"""Lightweight convolution: a depthwise convolution whose kernel is shared by heads and normalised over its taps."""

from depthwise.kernels.backend import pick
from depthwise.kernels.correlation import correlate
from depthwise.kernels.weights import at_least_float32, drop_connect, normalize
from depthwise.kernels.windows import covered_mass, trailing
from depthwise.shapes import Bool, Float, Int, Tensor


def light_conv(
    x: Float[Tensor, "B L C"],
    weight: Float[Tensor, "H K"],
    *,
    left: int,
    valid: Bool[Tensor, "B L"] | None = None,
    positions: Int[Tensor, "B P"] | None = None,
    num_last: int | None = None,
    normalization: str = "softmax",
    dropconnect: float = 0.0,
    dropconnect_shared: bool = False,
    renormalize: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "B _p C"]:
    """y[b, t, c] = sum_k normalize(weight)[head(c), k] * x[b, t - left + k, c]      (Wu et al. 2019, eq. 3-4).

    ``left`` is K - 1 in causal and (K - 1) / 2 in centred mode. The kernel is normalised over all K taps; those that
    fall outside the sequence or on padding (``valid`` false) meet zeros, and keep their mass unless ``renormalize``
    divides it away. Output is computed at ``positions``, at the ``num_last`` last steps, or everywhere.
    """
    positions = trailing(x, positions, num_last)
    run = IMPLEMENTATIONS[pick(backend)]
    return run(x, weight, left, valid, positions, normalization, dropconnect, dropconnect_shared, renormalize)


def light_conv_reference(
    x: Tensor,
    weight: Tensor,
    left: int,
    valid: Tensor | None,
    positions: Tensor | None,
    normalization: str,
    dropconnect: float,
    dropconnect_shared: bool,
    renormalize: bool,
) -> Tensor:
    """Plain PyTorch, float32 inside."""
    inputs = at_least_float32(x if valid is None else x.masked_fill(~valid.unsqueeze(-1), 0))
    kernel = normalize(weight, normalization)[None, None]
    steps = x.shape[1] if positions is None else positions.shape[1]
    dropped = drop_connect(kernel, dropconnect, shared=dropconnect_shared, rows=(x.shape[0], steps))
    y = correlate(inputs, dropped.to(inputs.dtype), left=left, positions=positions)
    if renormalize:
        y = y / covered_mass(inputs, kernel.to(inputs.dtype), left, valid, positions)
    return y.to(x.dtype)


IMPLEMENTATIONS = {"reference": light_conv_reference}
