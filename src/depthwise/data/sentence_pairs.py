"""Two segments that follow each other, in order or swapped: sentence-order prediction (Lan et al. 2020, section 3.1).

Lines are sentences. As many as fit make a chunk, which is parted between two of its lines; half of the time the parts
change places. An empty line between two lines parts documents, and no chunk reaches beyond one.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from depthwise.data.lines import LineReport
from depthwise.data.rows import Texts
from depthwise.data.store import Row
from depthwise.data.templates import pair_template, text_template
from depthwise.errors import ConfigError, DataError, Problem

IN_ORDER, SWAPPED = 0, 1
STREAM = 0x50414952
"""Keeps these draws apart from the masks of the same seed, number and epoch, which would tell the order otherwise."""


@dataclass(frozen=True)
class PairOptions:
    """How long pairs are and where they come from."""

    max_tokens: int = 512
    """The most ids of a row, special tokens included."""
    across_empty_lines: bool = False
    """Whether a chunk may go on behind an empty line, for files that have one after each line, such as WikiText."""
    dynamic: bool = True
    """Whether each epoch parts and swaps anew."""
    seed: int = 0

    def __post_init__(self) -> None:
        problems = []
        if self.max_tokens < 2:
            problems.append(Problem("max_tokens", f"{self.max_tokens} leaves no room for two segments; give more"))
        if self.seed < 0:
            problems.append(Problem("seed", f"{self.seed} is negative; give 0 or more"))
        if problems:
            raise ConfigError("pairs", problems)


class SentencePairs:
    """Pairs by number, each one text with label 0 in order or 1 swapped; ``pairs[~i]`` is pair i to be ignored.

    Where even two lines are too long together, the longer one is shortened at its outer end, so that the segments
    still meet. ``num_left_out`` counts lines that have no neighbour to be paired with.
    """

    def __init__(self, store: Texts, tokenizer: PreTrainedTokenizerBase, options: PairOptions) -> None:
        self.store, self.options = store, options
        self._single, self._pair = text_template(tokenizer), pair_template(tokenizer)
        self._room = options.max_tokens - self._pair.num_special
        if self._room < 2:
            problem = f"{options.max_tokens} leaves no room beside {self._pair.num_special} special tokens; give more"
            raise ConfigError("pairs", [Problem("max_tokens", problem)])
        self._sizes = store.lengths()[:, 0].astype(np.int64) - self._single.num_special
        self.num_left_out = 0
        self._chunks = self._chunked()
        self._epoch = 0
        if not len(self._chunks):
            raise DataError(
                "the text holds no two lines that follow each other; give one sentence a line and an empty line only "
                "between documents"
            )

    @property
    def report(self) -> LineReport:
        return self.store.report

    def set_epoch(self, epoch: int) -> None:
        """Part and swap as in this epoch from now on, in this process."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, index: int) -> Row:
        number = ~index if index < 0 else index
        lines = self._chunks[number]
        epoch = [self._epoch] if self.options.dynamic else []
        generator = np.random.default_rng([STREAM, self.options.seed, number, *epoch])
        middle = int(generator.integers(1, len(lines)))
        segments = self._fitted(
            *(np.concatenate([self._body(line) for line in part]) for part in np.split(lines, [middle]))
        )
        label = int(generator.integers(2))
        first, second = segments if label == IN_ORDER else segments[::-1]
        return Row(number, (self._pair.joined(first, second),), label, index < 0)

    def lengths(self) -> npt.NDArray[np.int32]:
        """How many ids each pair has, which is the same in every epoch, as one column."""
        totals = [min(int(self._sizes[lines].sum()), self._room) for lines in self._chunks]
        return (np.array(totals, np.int32) + np.int32(self._pair.num_special)).reshape(-1, 1)

    def _chunked(self) -> list[npt.NDArray[np.int64]]:
        """Numbers of the lines of each chunk: at least two, and as many more of the same document as fit."""
        chunks: list[npt.NDArray[np.int64]] = []
        for document in self._documents():
            while len(document) > 1:
                ends = np.cumsum(self._sizes[document[: self._room]])  # no line is empty, so that more cannot fit
                num = max(2, int(np.searchsorted(ends, self._room, side="right")))
                chunks.append(document[:num])
                document = document[num:]
            self.num_left_out += len(document)
        return chunks

    def _documents(self) -> list[npt.NDArray[np.int64]]:
        numbers = np.flatnonzero(self._sizes > 0)
        if self.options.across_empty_lines:
            return [numbers]
        lines = np.array([self.store.line(int(number)) for number in numbers], np.int64)
        return np.split(numbers, np.flatnonzero(np.diff(lines) != 1) + 1)

    def _body(self, line: int) -> npt.NDArray[np.int32]:
        """A line without its special tokens."""
        begin = len(self._single.before)
        return self.store[int(line)].texts[0][begin : begin + int(self._sizes[line])].astype(np.int32)

    def _fitted(
        self, first: npt.NDArray[np.int32], second: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Both segments, shortened at their outer ends where they have no room together."""
        half = self._room // 2
        keep = min(len(first), max(half, self._room - len(second)))
        return first[len(first) - keep :], second[: self._room - keep]
