"""Running text for language models: lines as a corpus, and a tokenised corpus as blocks or as lines.

A corpus is tokenised line by line, and every line ends in the end of sequence, which so takes the place of the newline:
the ``<eos>`` of WikiText for words, the newline for characters. The ids of all lines one behind the other are the
stream. A start token stands before the stream, or before every line, so that the first token is predicted too.

Rows are the same in training and evaluation, and in both every token of the text is predicted exactly once: the first
``num_context`` ids of a row are only seen, all others are labels. ``labels`` are ids in place; the model moves them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from depthwise.data.collate import IGNORED, padded
from depthwise.data.corpora import Corpus, file_identity
from depthwise.data.lines import Example, Fault, LineReport, LineRules, count_lines, read_lines
from depthwise.data.rows import IdRow
from depthwise.data.store import TokenStore, token_type, tokens_file
from depthwise.errors import ConfigError, Problem
from depthwise.shapes import Tensor

EMPTY_LINES = ("keep", "skip")


@dataclass(frozen=True)
class PlainText:
    """Lines of a file. Empty ones are kept as such, as WikiText counts them, or are passed over; none is a fault."""

    path: Path
    empty_lines: str = "keep"

    def __post_init__(self) -> None:
        if self.empty_lines not in EMPTY_LINES:
            message = f'"{self.empty_lines}" is none of {", ".join(EMPTY_LINES)}'
            raise ConfigError("data", [Problem("empty_lines", message)])

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def num_texts(self) -> int:
        return 1

    def num_lines(self) -> int:
        return count_lines(self.path)

    def identity(self) -> dict[str, Any]:
        return {"kind": "plain text", "empty_lines": self.empty_lines, "files": [file_identity(self.path)]}

    def examples(self, report: LineReport) -> Iterator[Example]:
        for number, line in enumerate(read_lines(self.path, report.rules.max_chars), start=1):
            if not isinstance(line, Fault):
                yield Example((line,), None, str(self.path), number)
            elif line.kind != "empty":
                report.bad(self.path, number, line)
            elif self.empty_lines == "keep":
                yield Example(("",), None, str(self.path), number)


def num_words(corpus: Corpus, rules: LineRules) -> int:
    """What perplexity per word divides by: what blanks separate, and the end of each line, as WikiText counts."""
    return sum(len(text.split()) + 1 for example in corpus.examples(LineReport(rules)) for text in example.texts)


@dataclass(frozen=True)
class BlockOptions:
    """The protocol of reading a stream in blocks, which a perplexity depends on."""

    block: int
    """The most ids that a model sees at a time."""
    context: int = 1
    """How many ids at the beginning of a block were predicted in the block before and are only seen here. The first id
    of a block cannot be predicted, so that 1 is the least; more gives every prediction at least that much to look at,
    at the price of more blocks."""

    def __post_init__(self) -> None:
        problems = []
        if self.block < 2:
            problems.append(Problem("block", f"{self.block} leaves nothing to predict; give at least 2"))
        if not 1 <= self.context < max(self.block, 2):
            problem = f"{self.context} is not between 1 and block - 1 = {self.block - 1}"
            problems.append(Problem("context", problem))
        if problems:
            raise ConfigError("blocks", problems)

    def __str__(self) -> str:
        return f"blocks of {self.block} tokens, the first {self.context} of each for context only"


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRow(IdRow):
    """Ids of which the first ``num_context`` are seen and all others are predicted too."""

    index: int
    num_context: int = 1


class TokenBlocks:
    """A stream of ids in blocks, by number: block k begins ``k · (block − context)`` ids into start token and stream.

    ``tokens`` may lie on disk; only what a block needs is read. ``blocks[~i]`` is block i to be ignored.
    """

    def __init__(self, tokens: npt.NDArray[Any], start_id: int, options: BlockOptions) -> None:
        self.tokens, self.start_id, self.options = tokens, start_id, options

    @classmethod
    def of_store(cls, store: TokenStore, start_id: int, options: BlockOptions) -> "TokenBlocks":
        """All texts of a store one behind the other."""
        return cls(stream_of(store), start_id, options)

    def __len__(self) -> int:
        beyond_the_first = len(self.tokens) + 1 - self.options.block
        stride = self.options.block - self.options.context
        return 1 + max(0, -(beyond_the_first // -stride)) if len(self.tokens) else 0

    def __getitem__(self, index: int) -> LanguageRow:
        number = ~index if index < 0 else index
        if number >= len(self):
            raise IndexError(f"block {number} of {len(self)}")
        begin, end = self._bounds(number)
        body = self.tokens[max(begin - 1, 0) : end - 1].astype(np.int32)
        ids = np.concatenate([[self.start_id], body]).astype(np.int32) if begin == 0 else body
        context = 1 if number == 0 else self.options.context
        return LanguageRow(ids, index < 0, index=number, num_context=context)

    def lengths(self) -> npt.NDArray[np.int32]:
        """How many ids each block has, as one column: all the same but for the last."""
        return np.array([[end - begin] for begin, end in map(self._bounds, range(len(self)))], np.int32).reshape(-1, 1)

    def _bounds(self, number: int) -> tuple[int, int]:
        """Where a block begins and ends, counted with the start token."""
        begin = number * (self.options.block - self.options.context)
        return begin, min(begin + self.options.block, len(self.tokens) + 1)


class TokenLines:
    """The lines of a store one by one, each behind a start token: no line sees another."""

    def __init__(self, store: TokenStore, start_id: int) -> None:
        self.store, self.start_id = store, start_id

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int) -> LanguageRow:
        row = self.store[index]
        ids = np.concatenate([[self.start_id], row.texts[0]]).astype(np.int32)
        return LanguageRow(ids, row.ignored, index=row.index)

    def lengths(self) -> npt.NDArray[np.int32]:
        """How many ids each row has, the start token included, as one column."""
        return self.store.lengths()[:, :1] + np.int32(1)


@dataclass(frozen=True)
class LanguageCollator:
    """``input_ids``, ``attention_mask`` and ``labels``: the same ids, -100 on context, padding and ignored rows."""

    pad_id: int
    pad_to_multiple: int = 1

    def __call__(self, rows: Sequence[LanguageRow]) -> dict[str, Tensor]:
        ids, valid = padded([row.ids for row in rows], self.pad_id, self.pad_to_multiple)
        labels = ids.masked_fill(~valid, IGNORED)
        for place, row in enumerate(rows):
            labels[place, : None if row.ignored else row.num_context] = IGNORED
        return {"input_ids": ids, "attention_mask": valid.long(), "labels": labels}


def stream_of(store: TokenStore) -> npt.NDArray[Any]:
    """The ids of all first texts of a store one behind the other, still on disk."""
    return np.memmap(store.folder / tokens_file(0), token_type(store.vocab_size), mode="r")
