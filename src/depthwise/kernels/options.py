"""How a convolution is to be computed: what light and dynamic ones have in common."""

from typing import NamedTuple

from depthwise.shapes import Tensor


class ConvOptions(NamedTuple):
    """The arguments of ``light_conv`` and ``dynamic_conv`` that both hand down as they are."""

    left: int
    valid: Tensor | None
    positions: Tensor | None
    normalization: str
    dropconnect: float
    dropconnect_shared: bool
    renormalize: bool
    boundaries: Tensor | None
    segments: Tensor | None

    @property
    def fuses(self) -> bool:
        """Whether kernels that are normalised while they are used can do all of it."""
        return self.normalization == "softmax" or not self.renormalize
