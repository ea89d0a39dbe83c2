"""The module around a light or dynamic convolution: in-projection, gate, convolution, out-projection."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from depthwise.kernels import is_convolved_as_it_lies
from depthwise.memory import InputMemory, Places
from depthwise.mixers.base import Mixer, taps_before
from depthwise.mixers.linear import ScaledLinear, weights_of
from depthwise.shapes import Bool, Float, Int, Tensor

FEW = 5
"""How many times as long a row must be as there are readers for a convolution to go from reader to reader: on a CPU
these take about so many times as long as neighbours do together."""
WORTH_FOLDING = 1.25
"""How many times fewer operations folding must take: its products are smaller and there are more of them."""
FOLDED_AT_ONCE = 2**19
"""Values in windows of states that are gathered at a time, few enough to stay in the cache of a CPU."""


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
        very few read. Tokens that nobody sees leave nothing behind. On a CPU few readers need no inputs at all.
        """
        mixed = self._folded(x, places)
        if mixed is None:
            x, places = places.narrowed(x, self.left, self.options.kernel_size - 1 - self.left)
            mixed = self._convolved_packed(x, self.write(x).inputs, places)
        if self.conv_bias is not None:
            mixed = mixed + self.conv_bias
        return self.out_projection(mixed)

    def _folded(self, x: Float[Tensor, "1 N D"], places: Places) -> Float[Tensor, "1 A C"] | None:
        """What few readers take from tokens whose inputs nobody projects; none where that would take longer.

            sum_k w_k (W x_k + b) = W (sum_k w_k x_k) + (sum_k w_k) b      over the taps k within the sequence

        Sums are as many times wider as there are heads, but the matrix meets readers instead of all tokens, and once
        more where kernels are predicted from what it gives. In 16 bits sums would be rounded before they are projected.
        Whoever asks for a kernel gets it.
        """
        (heads, taps), (num_tokens, width) = (self.options.num_heads, self.options.kernel_size), x.shape[1:]
        channels, num_readers = self.options.channels, places.num_readers
        is_linear = not (self.options.glu or self.options.renormalize_padding or self.training)
        if not is_linear or x.device.type != "cpu" or x.dtype.itemsize < torch.float32.itemsize:
            return None
        if num_readers * (2 * channels + heads * taps) * WORTH_FOLDING > min(num_tokens, num_readers * taps) * channels:
            return None
        weights = weights_of(self.in_projection)
        if weights is None or self.reads_as_it_lies(x):
            return None
        by_head, bias = weights[0].view(heads, channels // heads, width), weights[1].view(heads, -1)
        seen, is_there = places.windows(self.left, taps - 1 - self.left)
        kernels = self.kernels_of(places.taken(x)[0], weights) * is_there.unsqueeze(1)
        at_once = max(1, FOLDED_AT_ONCE // (taps * width))
        mixed = []
        for some, steps in zip(kernels.split(at_once), seen.split(at_once), strict=True):
            sums = some @ x[0].index_select(0, steps.flatten()).view(*steps.shape, width)
            taken = (sums.transpose(0, 1) @ by_head.transpose(1, 2)).transpose(0, 1)
            mixed.append((taken + some.sum(-1, keepdim=True) * bias).flatten(1))
        return (mixed[0] if len(mixed) == 1 else torch.cat(mixed)).unsqueeze(0)

    def _convolved_packed(self, x: Tensor, inputs: Float[Tensor, "1 N C"], places: Places) -> Float[Tensor, "1 A C"]:
        if self.reads_as_it_lies(inputs):
            positions = None if places.readers_there is None else places.readers_there.unsqueeze(0)
            return self.convolve(places.taken(x), InputMemory(inputs), positions, places.sequences.segments)
        return self._convolved_apart(x, inputs, places)

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
    def kernels_of(self, x: Float[Tensor, "A D"], weights: tuple[Tensor, Tensor]) -> Float[Tensor, "A H K"]:
        """The normalised kernels with which these states read; ``weights`` make convolution inputs of them."""

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
