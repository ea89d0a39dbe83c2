"""Dynamic convolution."""

from collections.abc import Callable

from torch import nn

from depthwise.kernels import dynamic_conv, normalize
from depthwise.memory import InputMemory
from depthwise.mixers.projected import ConvOptions, ProjectedConv
from depthwise.shapes import Float, Int, Tensor


class KernelPredictor(nn.Linear):
    """Raw kernels (H, K) from one state. A class of its own because it keeps torch's default initialisation."""


class DynamicConv(ProjectedConv):
    """A kernel of its own for every position, predicted from that position alone (Wu et al. 2019, section 4).

    f(X_i)[h, j] = sum_c W^Q[h, j, c] X[i, c], normalised over j.   Ours -> theirs: ``kernel.weight (H * K, C)`` -> W^Q.
    X is the convolution input, or the input of the layer where ``kernel_from`` is ``layer_input``.
    """

    def __init__(self, options: ConvOptions, *, kernel_from: str = "conv_input") -> None:
        super().__init__(options)
        self.from_layer_input = kernel_from == "layer_input"
        features = options.width if self.from_layer_input else options.channels
        self.kernel = KernelPredictor(features, options.num_heads * options.kernel_size, bias=False)

    def kernels_of(self, x: Float[Tensor, "1 A D"], project: Callable[[Tensor], Tensor]) -> Float[Tensor, "A H K"]:
        raw = self.kernel(x if self.from_layer_input else project(x))[0]
        return normalize(raw.unflatten(-1, (self.options.num_heads, -1)), self.options.normalization)

    def convolve(
        self,
        x: Float[Tensor, "B P D"],
        memory: InputMemory,
        positions: Int[Tensor, "B P"] | None,
        segments: Int[Tensor, "1 L"] | None = None,
    ) -> Float[Tensor, "B P C"]:
        return self._convolved(memory, self._kernels(x, memory, positions), positions, segments)

    def convolve_everywhere(
        self, x: Float[Tensor, "1 P D"], memory: InputMemory, positions: Int[Tensor, "1 P"]
    ) -> Float[Tensor, "1 L C"]:
        """Kernels are predicted where somebody reads; they are 0 elsewhere."""
        kernels = self._kernels(x, memory, positions)
        spread = kernels.new_zeros(1, memory.length, kernels.shape[-1]).index_copy_(1, positions[0], kernels)
        return self._convolved(memory, spread, None)

    def _kernels(self, x: Tensor, memory: InputMemory, positions: Tensor | None) -> Float[Tensor, "B P _k"]:
        return self.kernel(x if self.from_layer_input else _inputs_at(memory, positions, x.shape[1]))

    def _convolved(
        self,
        memory: InputMemory,
        kernels: Float[Tensor, "B P _k"],
        positions: Int[Tensor, "B P"] | None,
        segments: Int[Tensor, "1 L"] | None = None,
    ) -> Float[Tensor, "B P C"]:
        return dynamic_conv(
            memory.inputs,
            kernels.unflatten(-1, (self.options.num_heads, self.options.kernel_size)),
            left=self.left,
            valid=memory.valid,
            positions=positions,
            normalization=self.options.normalization,
            dropconnect=self.options.dropconnect if self.training else 0.0,
            dropconnect_shared=self.options.dropconnect_shared,
            renormalize=self.options.renormalize_padding,
            segments=segments,
        )


def _inputs_at(memory: InputMemory, positions: Int[Tensor, "B P"] | None, num_last: int) -> Float[Tensor, "B P C"]:
    """The convolution inputs of the positions that read."""
    if positions is None:
        return memory.inputs[:, memory.length - num_last :]
    return memory.inputs.gather(1, positions.unsqueeze(-1).expand(-1, -1, memory.inputs.shape[-1]))
