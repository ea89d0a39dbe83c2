"""The module around a light or dynamic convolution: in-projection, gate, convolution, out-projection."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from depthwise.kernels import is_convolved_as_it_lies, is_forced
from depthwise.memory import InputMemory, Places
from depthwise.mixers.base import Mixer, taps_before
from depthwise.mixers.linear import ScaledLinear, weights_of
from depthwise.shapes import Bool, Float, Int, Tensor

FEW = 5
"""How many times as long a row must be as there are readers for a convolution to go from reader to reader: on a CPU
these take about so many times as long as neighbours do together."""
WORTH_FOLDING = 1.75
"""How many times fewer operations folding must take: its products are smaller and there are more of them."""
WORTH_FOLDING_RECORDED = 5.4
"""The same in recorded blocks of a GPU, where it comes with some ten launches: fewer than an eighth of tokens read."""
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
        self._by_head: tuple[Tensor, Tensor] | None = None

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

    def prepare(self) -> None:
        """The in-projection as folding takes it."""
        self._by_head = self._weights_by_head()

    def _weights_by_head(self) -> tuple[Float[Tensor, "H D _d"], Float[Tensor, "H _d"]] | None:
        """Weight, transposed, and bias of the in-projection for every head; none as in ``weights_of``."""
        heads, weights = self.options.num_heads, weights_of(self.in_projection)
        if weights is None:
            return None
        return weights[0].unflatten(0, (heads, -1)).transpose(1, 2), weights[1].view(heads, -1)

    def folds(self, x: Float[Tensor, "1 N D"], num_readers: int, *, is_recorded: bool) -> bool:
        """Whether so few readers take less time by ``_folded``: on a CPU, or in a recorded block of a GPU.

        Whoever asks for a kernel gets it.
        """
        options, worth = self.options, WORTH_FOLDING_RECORDED if is_recorded else WORTH_FOLDING
        channels, taps = options.channels, options.kernel_size
        spared = min(x.shape[1], num_readers * taps) * channels
        if num_readers * (channels + options.num_heads * taps) * worth > spared:
            return False
        is_linear = not (options.glu or options.renormalize_padding or self.training)
        is_open = (is_recorded or x.device.type == "cpu") and not is_forced("triton")
        return is_linear and is_open and x.dtype.itemsize >= torch.float32.itemsize

    def _folded(self, x: Float[Tensor, "1 N D"], places: Places) -> Float[Tensor, "1 A C"] | None:
        """What few readers take from tokens whose inputs nobody projects; none where that would take longer.

            sum_k w_k (W x_k + b) = W (sum_k w_k x_k) + (sum_k w_k) b      over the taps k within the sequence

        Sums are as many times wider as there are heads, but the matrix meets readers instead of all tokens. In 16 bits
        sums would be rounded before they are projected.
        """
        options, width, num_readers = self.options, x.shape[2], places.num_readers
        is_recorded = places.sequences.around is not None
        if (is_recorded and places.readers is None) or not self.folds(x, num_readers, is_recorded=is_recorded):
            return None
        by_head = self._by_head or self._weights_by_head()
        if by_head is None:
            return None
        weight, bias = by_head
        taps = options.kernel_size
        seen, is_there = places.windows(self.left, taps - 1 - self.left)
        kernels = self.kernels_of(x, places) * is_there.unsqueeze(1)
        at_once = num_readers if is_recorded else max(1, FOLDED_AT_ONCE // (taps * width))
        mixed = []
        for begin in range(0, num_readers, at_once):
            some, steps = kernels[begin : begin + at_once], seen[begin : begin + at_once]
            sums = torch.bmm(some, F.embedding(steps, x[0]))
            taken = torch.bmm(sums.transpose(0, 1), weight).transpose(0, 1)
            mixed.append(torch.addcmul(taken, some.sum(-1, keepdim=True), bias).flatten(1))
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
        return self.convolve_everywhere(x, places, memory, positions).index_select(1, positions[0])

    @abstractmethod
    def kernels_of(self, x: Float[Tensor, "1 N D"], places: Places) -> Float[Tensor, "*A H K"]:
        """The normalised kernels with which readers read, or the one with which all do."""

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
        self, x: Float[Tensor, "1 N D"], places: Places, memory: InputMemory, positions: Int[Tensor, "1 A"]
    ) -> Float[Tensor, "1 L C"]:
        """The convolution of all of one row at once, of which only the positions of readers have to be right."""
