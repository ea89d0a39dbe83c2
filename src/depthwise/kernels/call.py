"""One call of the Triton kernels, as a value: everything about a convolution but its tensors of numbers."""

from typing import NamedTuple

import torch

from depthwise.shapes import Tensor

FLAGS = ("SOFTMAX", "RENORMALIZE", "DROP", "SHARED", "HAS_VALID", "HAS_POSITIONS", "HAS_SEGMENTS")


class Call(NamedTuple):
    """Everything about a convolution but its tensors of numbers; ``triton_ops`` explains each."""

    left: int
    num_readers: int
    valid: Tensor | None
    positions: Tensor | None
    segments: Tensor | None
    seed: Tensor | None
    softmax: bool
    renormalize: bool
    dropconnect: float
    dropconnect_shared: bool

    def flags(self) -> tuple[bool, ...]:
        """What changes the code of a kernel, in the order of ``FLAGS``."""
        return (
            self.softmax,
            self.renormalize,
            self.seed is not None,
            self.dropconnect_shared,
            self.valid is not None,
            self.positions is not None,
            self.segments is not None,
        )

    def pointers(self, unused: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mask, positions, segments and seed; ``unused`` stands for those that are none, and nobody follows it."""
        return (
            unused if self.valid is None else last_axis_dense(self.valid).view(torch.uint8),
            unused if self.positions is None else self.positions.contiguous(),
            unused if self.segments is None else self.segments.contiguous(),
            unused if self.seed is None else self.seed,
        )


def last_axis_dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of one whose last axis is strided."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
