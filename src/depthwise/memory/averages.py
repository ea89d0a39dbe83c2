"""Memory of average attention."""

from dataclasses import dataclass

import torch

from depthwise.memory.base import first, first_valid, join_valid, keep_valid, last, last_valid
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class AverageMemory:
    """Inputs of L positions, and the sum and number of all real tokens before them (none: they are the first)."""

    inputs: Float[Tensor, "B L D"]
    valid: Bool[Tensor, "B L"] | None = None
    before: tuple[Float[Tensor, "B D"], Float[Tensor, "B 1"]] | None = None

    @property
    def length(self) -> int:
        return self.inputs.shape[1]

    def append(self, later: "AverageMemory") -> "AverageMemory":
        assert later.before is None, "what is appended must have been written on its own"
        return AverageMemory(
            torch.cat([self.inputs, later.inputs], dim=1),
            join_valid(self.valid, later.valid, (self.length, later.length), self.inputs),
            self.before,
        )

    def recent(self, count: int) -> "AverageMemory":
        """Positions older than the last ``count`` are folded into the sum, in order."""
        old = max(self.length - count, 0)
        if old == 0:
            return self
        folded = self.inputs[:, :old]
        folded = folded if folded.dtype == torch.float64 else folded.float()
        real = folded.new_ones(folded.shape[:2]) if self.valid is None else self.valid[:, :old].to(folded.dtype)
        total, number = folded.masked_fill(real.unsqueeze(-1) == 0, 0).sum(1), real.sum(1, keepdim=True)
        if self.before is not None:
            total, number = self.before[0] + total, self.before[1] + number
        return AverageMemory(last(self.inputs, count), last_valid(self.valid, count), (total, number))

    def without_last(self, count: int) -> "AverageMemory":
        left = self.length - count
        return AverageMemory(first(self.inputs, left), first_valid(self.valid, left), self.before)

    def keep(self, rows: Int[Tensor, "R"]) -> "AverageMemory":
        before = self.before
        return AverageMemory(
            self.inputs.index_select(0, rows),
            keep_valid(self.valid, rows),
            None if before is None else (before[0].index_select(0, rows), before[1].index_select(0, rows)),
        )
