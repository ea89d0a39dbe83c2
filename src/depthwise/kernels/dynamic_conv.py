"""Dynamic convolution: like the lightweight one, with a kernel of its own at every position."""

from depthwise.kernels.backend import pick
from depthwise.kernels.convolution import convolve
from depthwise.kernels.options import ConvOptions
from depthwise.kernels.packed import check_packed
from depthwise.kernels.triton_ops import convolve_fused
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
    boundaries: Int[Tensor, "_n"] | None = None,
    segments: Int[Tensor, "1 L"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "B P C"]:
    """y[b, t, c] = sum_k normalize(logits[b, t])[head(c), k] * x[b, t - left + k, c]      (Wu et al. 2019, section 4).

    ``logits`` belong to the positions that read: those in ``positions``, or else the last P steps of ``x``. Always
    normalised over all K taps; those that fall outside the sequence or on padding (``valid`` false) meet zeros, and
    keep their mass unless ``renormalize`` divides it away. Where ``boundaries`` (0 and the end of each sequence) are
    given, or ``segments`` (for each step the number of its sequence, of 32 bits), the one row of ``x`` holds several
    sequences that do not see each other.
    """
    check_packed(x, boundaries, segments, logits.shape[1] if positions is None else None)
    options = ConvOptions(
        left, valid, positions, normalization, dropconnect, dropconnect_shared, renormalize, boundaries, segments
    )
    run = IMPLEMENTATIONS[pick(backend, x, logits, fused_renormalization=options.fuses)]
    return run(x, logits, options)


def dynamic_conv_reference(x: Tensor, logits: Tensor, options: ConvOptions) -> Tensor:
    """Plain PyTorch, float32 inside."""
    options = options._replace(positions=trailing(x, options.positions, logits.shape[1]))
    return convolve(x, normalize(logits, options.normalization), options)


def dynamic_conv_triton(x: Tensor, logits: Tensor, options: ConvOptions) -> Tensor:
    """One kernel, softmax included; another normalisation comes first, in plain PyTorch."""
    kernel = logits if options.normalization == "softmax" else normalize(logits, options.normalization)
    return convolve_fused(x, kernel, logits.shape[1], options)


IMPLEMENTATIONS = {"reference": dynamic_conv_reference, "triton": dynamic_conv_triton}
