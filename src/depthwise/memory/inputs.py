"""Memory of convolutions."""

from dataclasses import dataclass

import torch

from depthwise.memory.base import first, first_valid, join_valid, keep_valid, last, last_valid
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class InputMemory:
    """Projected (and gated) convolution inputs of L positions."""

    inputs: Float[Tensor, "B L C"]
    valid: Bool[Tensor, "B L"] | None = None

    @property
    def length(self) -> int:
        return self.inputs.shape[1]

    def append(self, later: "InputMemory") -> "InputMemory":
        return InputMemory(
            torch.cat([self.inputs, later.inputs], dim=1),
            join_valid(self.valid, later.valid, (self.length, later.length), self.inputs),
        )

    def recent(self, count: int) -> "InputMemory":
        return InputMemory(last(self.inputs, count), last_valid(self.valid, count))

    def without_last(self, count: int) -> "InputMemory":
        return InputMemory(first(self.inputs, self.length - count), first_valid(self.valid, self.length - count))

    def keep(self, rows: Int[Tensor, "R"]) -> "InputMemory":
        return InputMemory(self.inputs.index_select(0, rows), keep_valid(self.valid, rows))
