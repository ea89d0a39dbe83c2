"""The module around a light or dynamic convolution: in-projection, gate, convolution, out-projection."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import nn
from torch.nn import functional as F

from depthwise.kernels import is_convolved_as_it_lies
from depthwise.memory import InputMemory, Places
from depthwise.mixers.base import Mixer, taps_before
from depthwise.mixers.linear import ScaledLinear
from depthwise.shapes import Bool, Float, Int, Tensor

FEW = 5
"""How many times as long a row must be as there are readers for a convolution to go from reader to reader: on a CPU
these take about so many times as long as neighbours do together."""


@dataclass(frozen=True, kw_only=True)
class ConvOptions:
    """What light and dynamic convolutions have in common; ``config.model.StackConfig`` explains each."""

    width: int
    kernel_size: int
    num_heads: int
    causal: bool
    conv_width: int | None = None
    glu: bool = False
    normalization: str = "softmax"
    dropconnect: float = 0.0
    dropconnect_shared: bool = False
    renormalize_padding: bool = False
    bias: bool = False
    input_dropout: float = 0.0
    out_gain: float = 1.0

    @property
    def channels(self) -> int:
        return self.width if self.conv_width is None else self.conv_width


class ProjectedConv(Mixer):
    """Y = W_O conv(act(W_I X)), act = GLU or identity (Wu et al. 2019, Figure 2); subclasses say what conv is.

    The memory holds act(W_I X): kernels are applied to it, and dynamic ones are predicted from it.
    """

    def __init__(self, options: ConvOptions) -> None:
        super().__init__()
        self.options = options
        self.left = taps_before(options.kernel_size, options.causal)
        self.reach = options.kernel_size - 1
        self.in_projection = nn.Linear(options.width, options.channels * (2 if options.glu else 1))
        self.out_projection = ScaledLinear(options.channels, options.width, options.out_gain)
        self.conv_bias = nn.Parameter(self.out_projection.weight.new_zeros(options.channels)) if options.bias else None

    def write(self, x: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None = None) -> InputMemory:
        x = self.in_projection(F.dropout(x, self.options.input_dropout) if self.training else x)
        return InputMemory(F.glu(x) if self.options.glu else x, valid)

    def read(
        self, x: Float[Tensor, "B P D"], memory: InputMemory, positions: Int[Tensor, "B P"] | None = None
    ) -> Float[Tensor, "B P D"]:
        mixed = self.convolve(x, memory, positions)
        if self.conv_bias is not None:
            mixed = mixed + self.conv_bias
        return self.out_projection(mixed)

    def mix_packed(self, x: Float[Tensor, "1 N D"], places: Places) -> Float[Tensor, "1 A D"]:
        """A kernel reads the row as it lies. The reference convolves it with room between sequences: everywhere, unless
        very few read. Tokens that nobody sees leave nothing behind.
        """
        x, places = places.narrowed(x, self.left, self.options.kernel_size - 1 - self.left)
        inputs = self.write(x).inputs
        if self.reads_as_it_lies(inputs):
            positions = None if places.readers_there is None else places.readers_there.unsqueeze(0)
            mixed = self.convolve(places.taken(x), InputMemory(inputs), positions, places.sequences.segments)
        else:
            mixed = self._convolved_apart(x, inputs, places)
        if self.conv_bias is not None:
            mixed = mixed + self.conv_bias
        return self.out_projection(mixed)

    def reads_as_it_lies(self, inputs: Float[Tensor, "1 _n _c"]) -> bool:
        """Whether a kernel convolves packed sequences of such inputs without room between them."""
        fuses = self.options.normalization == "softmax" or not self.options.renormalize_padding
        return is_convolved_as_it_lies(inputs, self.options.kernel_size, fused_renormalization=fuses)

    def _convolved_apart(self, x: Tensor, inputs: Float[Tensor, "1 N C"], places: Places) -> Float[Tensor, "1 A C"]:
        room = self.options.kernel_size - 1
        valid = places.spaced_valid(room) if self.options.renormalize_padding else None
        memory, positions = InputMemory(places.spaced(inputs, room), valid), places.spaced_readers(room)
        if positions.shape[1] * FEW < memory.length:
            return self.convolve(places.taken(x), memory, positions)
        if places.num_readers == memory.length:
            return self.convolve(x, memory, None)
        return self.convolve_everywhere(places.taken(x), memory, positions).index_select(1, positions[0])

    @abstractmethod
    def convolve(
        self,
        x: Float[Tensor, "B P D"],
        memory: InputMemory,
        positions: Int[Tensor, "B P"] | None,
        segments: Int[Tensor, "1 L"] | None = None,
    ) -> Float[Tensor, "B P C"]:
        """The convolution of the memory at the positions that read; ``segments`` number sequences in its one row."""

    @abstractmethod
    def convolve_everywhere(
        self, x: Float[Tensor, "1 P D"], memory: InputMemory, positions: Int[Tensor, "1 P"]
    ) -> Float[Tensor, "1 L C"]:
        """The convolution of all of one row at once, of which only some positions have to be right."""
