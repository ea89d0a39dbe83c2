"""Lightweight convolution: a depthwise convolution whose kernel is shared by heads and normalised over its taps."""

from depthwise.kernels.backend import pick
from depthwise.kernels.convolution import convolve
from depthwise.kernels.weights import normalize
from depthwise.kernels.windows import trailing
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
    kernel = normalize(weight, normalization)[None, None]
    return convolve(x, kernel, left, valid, positions, dropconnect, dropconnect_shared, renormalize)


IMPLEMENTATIONS = {"reference": light_conv_reference}
