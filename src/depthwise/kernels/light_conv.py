"""Lightweight convolution: a depthwise convolution whose kernel is shared by heads and normalised over its taps."""

from depthwise.kernels.backend import pick
from depthwise.kernels.convolution import convolve
from depthwise.kernels.options import ConvOptions
from depthwise.kernels.packed import check_packed
from depthwise.kernels.triton_ops import convolve_fused
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
    boundaries: Int[Tensor, "_n"] | None = None,
    segments: Int[Tensor, "1 L"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "B _p C"]:
    """y[b, t, c] = sum_k normalize(weight)[head(c), k] * x[b, t - left + k, c]      (Wu et al. 2019, eq. 3-4).

    ``left`` is K - 1 in causal and (K - 1) / 2 in centred mode. The kernel is normalised over all K taps; those that
    fall outside the sequence or on padding (``valid`` false) meet zeros, and keep their mass unless ``renormalize``
    divides it away. Output is computed at ``positions``, at the ``num_last`` last steps, or everywhere. Where
    ``boundaries`` (0 and the end of each sequence) are given, or ``segments`` (for each step the number of its
    sequence, of 32 bits), the one row of ``x`` holds several sequences that do not see each other.
    """
    check_packed(x, boundaries, segments, num_last if positions is None else None)
    options = ConvOptions(
        left, valid, positions, normalization, dropconnect, dropconnect_shared, renormalize, boundaries, segments
    )
    run = IMPLEMENTATIONS[pick(backend, x, weight, fused_renormalization=options.fuses)]
    return run(x, weight, num_last, options)


def light_conv_reference(x: Tensor, weight: Tensor, num_last: int | None, options: ConvOptions) -> Tensor:
    """Plain PyTorch, float32 inside."""
    options = options._replace(positions=trailing(x, options.positions, num_last))
    return convolve(x, normalize(weight, options.normalization)[None, None], options)


def light_conv_triton(x: Tensor, weight: Tensor, num_last: int | None, options: ConvOptions) -> Tensor:
    """One kernel, softmax included; another normalisation comes first, in plain PyTorch.

    Listed positions and kernels cut off at padding make a kernel per position of it: the same numbers seen many times.
    """
    kernel = weight if options.normalization == "softmax" else normalize(weight, options.normalization)
    num_readers = x.shape[1] if num_last is None else num_last
    if options.positions is not None:
        num_readers = options.positions.shape[1]
    if options.positions is not None or options.renormalize:
        kernel = kernel.expand(x.shape[0], num_readers, -1, -1)
    return convolve_fused(x, kernel, num_readers, options)


IMPLEMENTATIONS = {"reference": light_conv_reference, "triton": light_conv_triton}
