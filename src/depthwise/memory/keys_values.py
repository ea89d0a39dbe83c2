"""Memory of attention."""

from dataclasses import dataclass

import torch

from depthwise.memory.base import first, first_valid, join_valid, keep_valid, last, last_valid
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class KeyValueMemory:
    """Keys and values of L positions."""

    keys: Float[Tensor, "B H L d"]
    values: Float[Tensor, "B H L d"]
    valid: Bool[Tensor, "B L"] | None = None

    @property
    def length(self) -> int:
        return self.keys.shape[2]

    def append(self, later: "KeyValueMemory") -> "KeyValueMemory":
        return KeyValueMemory(
            torch.cat([self.keys, later.keys], dim=2),
            torch.cat([self.values, later.values], dim=2),
            join_valid(self.valid, later.valid, (self.length, later.length), self.keys),
        )

    def recent(self, count: int) -> "KeyValueMemory":
        return KeyValueMemory(last(self.keys, count, 2), last(self.values, count, 2), last_valid(self.valid, count))

    def without_last(self, count: int) -> "KeyValueMemory":
        left = self.length - count
        return KeyValueMemory(first(self.keys, left, 2), first(self.values, left, 2), first_valid(self.valid, left))

    def keep(self, rows: Int[Tensor, "R"]) -> "KeyValueMemory":
        return KeyValueMemory(
            self.keys.index_select(0, rows), self.values.index_select(0, rows), keep_valid(self.valid, rows)
        )
