"""Non-separable convolution."""

import torch
from torch import nn

from depthwise.kernels import full_conv
from depthwise.memory import InputMemory, Places
from depthwise.mixers.base import Mixer, taps_before
from depthwise.shapes import Bool, Float, Int, Tensor


class CNN(Mixer):
    """A full D x D x K convolution without projections: the baseline of Wu et al. 2019, Table 3."""

    def __init__(
        self, width: int, kernel_size: int, *, causal: bool, bias: bool = False, out_gain: float = 1.0
    ) -> None:
        super().__init__()
        self.out_gain = out_gain
        self.left = taps_before(kernel_size, causal)
        self.reach = kernel_size - 1
        self.weight = nn.Parameter(torch.empty(width, width, kernel_size))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def write(self, x: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None = None) -> InputMemory:
        return InputMemory(x, valid)

    def read(
        self, x: Float[Tensor, "B P D"], memory: InputMemory, positions: Int[Tensor, "B P"] | None = None
    ) -> Float[Tensor, "B P D"]:
        return full_conv(
            memory.inputs,
            self.weight,
            self.bias,
            left=self.left,
            valid=memory.valid,
            positions=positions,
            num_last=x.shape[1],
        )

    def mix_packed(self, x: Float[Tensor, "1 N D"], places: Places) -> Float[Tensor, "1 A D"]:
        room = self.weight.shape[-1] - 1
        positions = places.spaced_readers(room)
        return full_conv(places.spaced(x, room), self.weight, self.bias, left=self.left, positions=positions)
