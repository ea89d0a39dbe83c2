"""Dynamic convolution: like the lightweight one, with a kernel of its own at every position."""

from depthwise.kernels.backend import pick
from depthwise.kernels.convolution import convolve
from depthwise.kernels.weights import normalize
from depthwise.kernels.windows import trailing
from depthwise.shapes import Bool, Float, Int, Tensor


def dynamic_conv(
    x: Float[Tensor, "B L C"],
    logits: Float[Tensor, "B P H K"],
    *,
    left: int,
    valid: Bool[Tensor, "B L"] | None = None,
    positions: Int[Tensor, "B P"] | None = None,
    normalization: str = "softmax",
    dropconnect: float = 0.0,
    dropconnect_shared: bool = False,
    renormalize: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "B P C"]:
    """y[b, t, c] = sum_k normalize(logits[b, t])[head(c), k] * x[b, t - left + k, c]      (Wu et al. 2019, section 4).

    ``logits`` belong to the positions that read: those in ``positions``, or else the last P steps of ``x``. Always
    normalised over all K taps; those that fall outside the sequence or on padding (``valid`` false) meet zeros, and
    keep their mass unless ``renormalize`` divides it away.
    """
    positions = trailing(x, positions, logits.shape[1])
    run = IMPLEMENTATIONS[pick(backend)]
    return run(x, logits, left, valid, positions, normalization, dropconnect, dropconnect_shared, renormalize)


def dynamic_conv_reference(
    x: Tensor,
    logits: Tensor,
    left: int,
    valid: Tensor | None,
    positions: Tensor | None,
    normalization: str,
    dropconnect: float,
    dropconnect_shared: bool,
    renormalize: bool,
) -> Tensor:
    """Plain PyTorch, float32 inside."""
    kernel = normalize(logits, normalization)
    return convolve(x, kernel, left, valid, positions, dropconnect, dropconnect_shared, renormalize)


IMPLEMENTATIONS = {"reference": dynamic_conv_reference}
