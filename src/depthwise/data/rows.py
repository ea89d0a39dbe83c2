"""Rows in memory as a data set, for what is prepared once and is small: tagged sentences, questions with windows.

Tokenised text may lie on disk (``TokenStore``) or in memory (``TextRows``); what is made of it, blocks or masked lines,
takes either.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from depthwise.data.lines import LineReport
from depthwise.data.store import Row


@dataclass(frozen=True, slots=True)
class IdRow:
    """Ids of one row. An ignored one is computed like any other but carries no loss; see ``batches``.

    ``marks`` has a number for every id, where words have numbers (``words``).
    """

    ids: npt.NDArray[np.int32]
    ignored: bool = False
    marks: npt.NDArray[np.uint16] | None = None


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


class Texts(Protocol):
    """Tokenised texts by number, wherever they lie."""

    @property
    def report(self) -> LineReport:
        """What was left out on the way."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Row: ...

    def lengths(self) -> npt.NDArray[np.int32]: ...

    def line(self, index: int) -> int: ...


class TextRows:
    """Texts in memory, each with the line that it stood on."""

    def __init__(self, texts: Sequence[npt.NDArray[np.integer]], lines: Sequence[int]) -> None:
        self.texts, self.lines = texts, lines
        self.report = LineReport(num_kept=len(texts))

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Row:
        number = ~index if index < 0 else index
        return Row(number, (self.texts[number],), None, index < 0)

    def lengths(self) -> npt.NDArray[np.int32]:
        """How many ids each text has, as one column."""
        return np.array([[len(text)] for text in self.texts], np.int32).reshape(-1, 1)

    def line(self, index: int) -> int:
        """The line of its file that a text stood on, counted from 1."""
        return self.lines[index]
