"""The seam between positions: a mixer writes and reads."""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

from depthwise.memory import Places
from depthwise.shapes import Bool, Float, Int, Tensor


class Mixer(nn.Module, ABC):
    """Moves information between positions, in two halves.

    ``write`` gives what other positions may see of these states; ``read`` gives what some positions take from a
    memory. A full forward is ``read(x, write(x))``; decoding appends what one step wrote and reads that step; adaptive
    execution writes for everyone and reads only for those who still run. Memories are immutable.
    """

    reach: int | None
    """How many earlier positions a later one can see; none for all of them."""

    @abstractmethod
    def write(self, x: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None = None) -> Any:
        """What these T positions leave behind; padding (``valid`` false) will not be seen."""

    @abstractmethod
    def read(
        self, x: Float[Tensor, "B P D"], memory: Any, positions: Int[Tensor, "B P"] | None = None
    ) -> Float[Tensor, "B P D"]:
        """What P positions take. ``x`` holds their states; ``positions`` says where in the memory they stand.

        Without ``positions`` they are the last P of the memory.
        """

    @abstractmethod
    def mix_packed(self, x: Float[Tensor, "1 N D"], places: Places) -> Float[Tensor, "1 A D"]:
        """What readers take, where the tokens of several sequences lie in one long row and there is no padding.

        The same numbers as by ``read`` and ``write``; whatever a token does by itself is done for readers alone.
        """

    def prepare(self) -> None:
        """Work out what follows from weights alone: those of a copy that is made anew when they change."""

    def write_and_read(
        self, x: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None = None, past: Any = None
    ) -> tuple[Float[Tensor, "B T D"], Any]:
        """Both for the same positions: what they take of ``past`` followed by what they write, and that memory."""
        written = self.write(x, valid)
        memory = written if past is None else past.append(written)
        return self.read(x, memory), memory

    def forget(self, memory: Any) -> Any:
        """The part of a memory that steps after it can still need."""
        return memory if self.reach is None else memory.recent(self.reach)

    def forward(self, x: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "B T D"]:
        """Every position writes and reads."""
        return self.write_and_read(x, valid)[0]


def taps_before(kernel_size: int, causal: bool) -> int:
    """Taps to the left of the current position: all others in causal mode, half of them in centred mode."""
    return kernel_size - 1 if causal else (kernel_size - 1) // 2
