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
from depthwise.data.rows import IdRow, Texts
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
class ContextRow(IdRow):
    """Ids of which the first ``num_context`` are seen and all others are predicted too."""

    index: int
    num_context: int = 1


class TokenBlocks:
    """A stream of ids in blocks, by number: block k begins ``k · (block − context)`` ids into start token and stream.

    The stream is an array or all texts one behind the other. These may lie on disk: only what a block needs is read,
    and they travel to other processes as they are, not as the stream. ``blocks[~i]`` is block i to be ignored.
    """

    def __init__(
        self, texts: Texts | npt.NDArray[Any], start_id: int, options: BlockOptions, report: LineReport | None = None
    ) -> None:
        self.texts, self.start_id, self.options = texts, start_id, options
        self.tokens = texts if isinstance(texts, np.ndarray) else stream_of(texts)
        self.report = LineReport() if report is None else report

    @classmethod
    def of_texts(cls, texts: Texts, start_id: int, options: BlockOptions) -> "TokenBlocks":
        """All texts one behind the other, with their report."""
        return cls(texts, start_id, options, texts.report)

    def __reduce__(self) -> tuple[type["TokenBlocks"], tuple[Any, ...]]:
        return type(self), (self.texts, self.start_id, self.options, self.report)

    def __len__(self) -> int:
        return int(num_blocks(len(self.tokens), self.options))

    def __getitem__(self, index: int) -> ContextRow:
        number = ~index if index < 0 else index
        if number >= len(self):
            raise IndexError(f"block {number} of {len(self)}")
        ids, context = block_of(self.tokens, number, self.start_id, self.options)
        return ContextRow(ids, index < 0, index=number, num_context=context)

    def lengths(self) -> npt.NDArray[np.int32]:
        """How many ids each block has, as one column: all the same but for the last."""
        begins = np.arange(len(self)) * (self.options.block - self.options.context)
        return np.minimum(self.options.block, len(self.tokens) + 1 - begins).astype(np.int32).reshape(-1, 1)


class TokenLines:
    """Lines one by one, each behind a start token: no line sees another. A line that is too long for the model is read
    in blocks, as if it were a stream of its own."""

    def __init__(self, texts: Texts, start_id: int, options: BlockOptions) -> None:
        self.texts, self.start_id, self.options = texts, start_id, options
        self.report = texts.report
        self._sizes = texts.lengths()[:, 0].astype(np.int64)
        self._ends = np.cumsum(num_blocks(self._sizes, options))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> ContextRow:
        place = ~index if index < 0 else index
        if place >= len(self):
            raise IndexError(f"block {place} of {len(self)}")
        line = self.line_of(place)
        number = place - (int(self._ends[line - 1]) if line else 0)
        ids, context = block_of(self.texts[line].texts[0], number, self.start_id, self.options)
        return ContextRow(ids, index < 0, index=place, num_context=context)

    def line_of(self, place: int) -> int:
        """The number of the line that a row is of."""
        return int(np.searchsorted(self._ends, place, side="right"))

    def lengths(self) -> npt.NDArray[np.int32]:
        """How many ids each row has, the start token included, as one column."""
        counts = num_blocks(self._sizes, self.options)
        firsts = np.repeat(self._ends - counts, counts)
        begins = (np.arange(len(self)) - firsts) * (self.options.block - self.options.context)
        ends = np.repeat(self._sizes + 1, counts)
        return np.minimum(self.options.block, ends - begins).astype(np.int32).reshape(-1, 1)


def num_blocks(num_tokens: Any, options: BlockOptions) -> Any:
    """How many blocks a stream of so many ids, or each of several, is read in."""
    beyond_the_first = np.maximum(0, num_tokens + 1 - options.block)
    return np.where(np.equal(num_tokens, 0), 0, 1 - (beyond_the_first // -(options.block - options.context)))


def block_of(
    tokens: npt.NDArray[Any], number: int, start_id: int, options: BlockOptions
) -> tuple[npt.NDArray[np.int32], int]:
    """A block of a stream, and how many of its ids are only seen; the first block begins with the start token."""
    begin = number * (options.block - options.context)
    end = min(begin + options.block, len(tokens) + 1)
    body = tokens[max(begin - 1, 0) : end - 1].astype(np.int32)
    if begin:
        return body, options.context
    return np.concatenate([[start_id], body]).astype(np.int32), 1


@dataclass(frozen=True)
class LanguageCollator:
    """``input_ids``, ``attention_mask`` and ``labels``: the same ids, -100 on context, padding and ignored rows."""

    pad_id: int

    def __call__(self, rows: Sequence[ContextRow]) -> dict[str, Tensor]:
        ids, valid = padded([row.ids for row in rows], self.pad_id)
        labels = ids.masked_fill(~valid, IGNORED)
        for place, row in enumerate(rows):
            labels[place, : None if row.ignored else row.num_context] = IGNORED
        return {"input_ids": ids, "attention_mask": valid.long(), "labels": labels}


def stream_of(texts: Texts) -> npt.NDArray[Any]:
    """The ids of all first texts one behind the other; those of a store stay on disk."""
    if isinstance(texts, TokenStore):
        return np.memmap(texts.folder / tokens_file(0), token_type(texts.vocab_size), mode="r")
    return np.concatenate([np.empty(0, np.int32), *(texts[number].texts[0] for number in range(len(texts)))])
