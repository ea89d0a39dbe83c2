"""Rows in memory as a data set, for what is prepared once and is small: tagged sentences, questions with windows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from depthwise.data.lines import LineReport


@dataclass(frozen=True, slots=True)
class IdRow:
    """Ids of one row. An ignored one is computed like any other but carries no loss; see ``batches``."""

    ids: npt.NDArray[np.int32]
    ignored: bool = False


R = TypeVar("R", bound=IdRow)


class Rows(Generic[R]):
    """Rows by number for PyTorch's ``DataLoader``; ``rows[~i]`` is row i to be ignored, as ``TokenBatches`` asks.

    ``report`` says what was left out on the way to them.
    """

    def __init__(self, rows: Sequence[R], report: LineReport | None = None) -> None:
        self.rows = rows
        self.report = LineReport() if report is None else report

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> R:
        return replace(self.rows[~index], ignored=True) if index < 0 else self.rows[index]

    def lengths(self) -> npt.NDArray[np.int32]:
        """How many ids each row has, as one column."""
        return np.array([[len(row.ids)] for row in self.rows], np.int32).reshape(-1, 1)
