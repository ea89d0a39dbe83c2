"""Which rows of a decoding something is about."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from depthwise.shapes import Int, Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """Some of ``num_all`` rows, by their rising numbers on the host; ``index`` has them on the device."""

    numbers: np.ndarray
    num_all: int
    device: torch.device

    @classmethod
    def every(cls, num_all: int, device: torch.device) -> "Rows":
        return cls(np.arange(num_all), num_all, device)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def are_all(self) -> bool:
        return len(self.numbers) == self.num_all

    @cached_property
    def index(self) -> Int[Tensor, "R"]:
        return on_device(self.numbers, self.device)

    @property
    def selection(self) -> Int[Tensor, "R"] | None:
        """``index``, or none for all rows."""
        return None if self.are_all else self.index

    def those(self, wanted: np.ndarray) -> "Rows":
        """The rows for which ``wanted`` (one truth value each) holds."""
        return Rows(self.numbers[wanted], self.num_all, self.device)

    def get(self, values: np.ndarray) -> np.ndarray:
        """Their part of what the host knows of all rows; a copy."""
        return values.copy() if self.are_all else values[self.numbers]

    def set(self, values: np.ndarray, value: int) -> None:
        """Change their part of it."""
        if self.are_all:
            values.fill(value)
        else:
            values[self.numbers] = value

    def of(self, table: Tensor) -> Tensor:
        """Their part of a tensor that has all rows."""
        return table if self.are_all else table.index_select(0, self.index)


def on_device(numbers: np.ndarray, device: torch.device) -> Int[Tensor, "..."]:
    """Numbers of the host as a tensor; nobody waits for the device."""
    return torch.from_numpy(numbers).to(device, non_blocking=True)
