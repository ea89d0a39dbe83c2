"""Dynamic convolution."""

from torch import nn
from torch.nn import functional as F

from depthwise.kernels import dynamic_conv, normalize
from depthwise.memory import InputMemory, Places
from depthwise.mixers.linear import made_from, weights_of
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
        self._from_states: tuple[Tensor, Tensor] | None = None

    def prepare(self) -> None:
        """Predict kernels of few readers from their states at once: W^Q (W_I x + b_I) = (W^Q W_I) x + W^Q b_I."""
        super().prepare()
        weights, predictor = weights_of(self.in_projection), made_from(self.kernel)
        if weights is None or self.options.glu or self.from_layer_input or not isinstance(predictor, nn.Linear):
            return
        self._from_states = predictor.weight @ weights[0], predictor.weight @ weights[1]

    def kernels_of(self, x: Float[Tensor, "1 N D"], places: Places) -> Float[Tensor, "A H K"]:
        states = places.taken(x)[0]
        if self._from_states is not None:
            raw = F.linear(states, *self._from_states)
        else:
            raw = self.kernel(states if self.from_layer_input else self.in_projection(states))
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
        self, x: Float[Tensor, "1 N D"], places: Places, memory: InputMemory, positions: Int[Tensor, "1 A"]
    ) -> Float[Tensor, "1 L C"]:
        """Kernels are predicted where somebody reads; they are 0 elsewhere."""
        seen = places.taken(x) if self.from_layer_input else _inputs_at(memory, positions, places.num_readers)
        kernels = self.kernel(seen)
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
    if len(positions) == 1:
        return memory.inputs.index_select(1, positions[0])
    return memory.inputs.gather(1, positions.unsqueeze(-1).expand(-1, -1, memory.inputs.shape[-1]))
