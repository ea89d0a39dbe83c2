"""Lightweight convolution; with one head per channel and no normalisation, an ordinary depthwise convolution."""

import math

import torch
from torch import nn

from depthwise.kernels import light_conv, normalize
from depthwise.memory import InputMemory, Places
from depthwise.mixers.projected import ConvOptions, ProjectedConv
from depthwise.shapes import Float, Int, Tensor


class LightConv(ProjectedConv):
    """A fixed kernel per head, softmax-normalised over its taps (Wu et al. 2019, section 3).

    Ours -> theirs: ``weight (num_heads, kernel_size)`` -> W in R^{H x k}.
    """

    def __init__(self, options: ConvOptions) -> None:
        super().__init__(options)
        self.weight = nn.Parameter(torch.empty(options.num_heads, options.kernel_size))
        self._normalized: Tensor | None = None

    @property
    def weight_bound(self) -> float:
        """Half-width of the uniform initialisation: Xavier on the shape (H, 1, K)."""
        heads, taps = self.weight.shape
        return math.sqrt(6 / (taps + heads * taps))

    def prepare(self) -> None:
        super().prepare()
        self._normalized = normalize(self.weight, self.options.normalization)

    def kernels_of(self, x: Float[Tensor, "1 N D"], places: Places) -> Float[Tensor, "H K"]:
        known = self._normalized
        return normalize(self.weight, self.options.normalization) if known is None else known

    def convolve(
        self,
        x: Float[Tensor, "B P D"],
        memory: InputMemory,
        positions: Int[Tensor, "B P"] | None,
        segments: Int[Tensor, "1 L"] | None = None,
    ) -> Float[Tensor, "B P C"]:
        return self._convolved(memory, positions, x.shape[1], segments)

    def convolve_everywhere(
        self, x: Float[Tensor, "1 N D"], places: Places, memory: InputMemory, positions: Int[Tensor, "1 A"]
    ) -> Float[Tensor, "1 L C"]:
        return self._convolved(memory, None, memory.length)

    def _convolved(
        self,
        memory: InputMemory,
        positions: Int[Tensor, "B P"] | None,
        num_last: int,
        segments: Int[Tensor, "1 L"] | None = None,
    ) -> Float[Tensor, "B _p C"]:
        return light_conv(
            memory.inputs,
            self.weight,
            left=self.left,
            valid=memory.valid,
            positions=positions,
            num_last=num_last,
            normalization=self.options.normalization,
            dropconnect=self.options.dropconnect if self.training else 0.0,
            dropconnect_shared=self.options.dropconnect_shared,
            renormalize=self.options.renormalize_padding,
            segments=segments,
        )
