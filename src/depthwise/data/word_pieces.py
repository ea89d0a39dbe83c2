"""Tags of words on pieces of words, and back.

Words are tokenised as running text, joined by blanks, so that a model sees them as in its pretraining. A piece belongs
to the word that its characters are of; blanks that are pieces of their own belong to none. The first piece of a word
carries its tag, all others carry no loss (Devlin et al. 2019, section 5.3).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from depthwise.data.collate import IGNORED, padded
from depthwise.data.conll import TaggedSentence
from depthwise.data.lines import Fault, LineReport
from depthwise.data.rows import IdRow
from depthwise.data.tags import OUTSIDE
from depthwise.data.templates import Template, fast_tokenizer, pieces_of, text_template
from depthwise.data.words import NO_WORD, UNMARKED, Spans, TextMarks
from depthwise.errors import ConfigError, DataError, Problem
from depthwise.shapes import Tensor

TOO_LONG = ("split", "cut")


@dataclass(frozen=True)
class WordPieceOptions:
    """How many ids a row may have, and what becomes of longer sentences."""

    max_tokens: int | None = None
    """Special tokens included."""
    too_long: str = "split"
    """A longer sentence is ``split`` between words into several rows, or ``cut``: the words behind have no tag."""

    def __post_init__(self) -> None:
        problems = []
        if self.max_tokens is not None and self.max_tokens < 1:
            problems.append(Problem("max_tokens", f"{self.max_tokens} leaves no room; give at least 1"))
        if self.too_long not in TOO_LONG:
            problems.append(Problem("too_long", f'"{self.too_long}" is none of {", ".join(TOO_LONG)}'))
        if problems:
            raise ConfigError("data", problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceRow(IdRow):
    """A sentence, or a part of one, as pieces. ``words`` numbers the word of each piece, -1 where there is none."""

    sentence: int
    words: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32] | None = None

    def firsts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Places of the pieces that speak for their words, and these words. A word has all its pieces in one row."""
        words, places = np.unique(self.words, return_index=True)
        return places[words != NO_WORD], words[words != NO_WORD]


@dataclass(frozen=True)
class TaggingCollator:
    """``input_ids``, ``attention_mask`` and, for rows with tags, ``labels`` (B, T), -100 on all but first pieces."""

    pad_id: int

    def __call__(self, rows: Sequence[PieceRow]) -> dict[str, Tensor]:
        ids, valid = padded([row.ids for row in rows], self.pad_id)
        batch = {"input_ids": ids, "attention_mask": valid.long()}
        labels = [row.labels for row in rows if row.labels is not None]
        if len(labels) == len(rows):
            filled, _ = padded(labels, IGNORED)
            batch["labels"] = filled.masked_fill(torch.tensor([row.ignored for row in rows])[:, None], IGNORED)
        return batch


def tagged_rows(
    sentences: Iterable[TaggedSentence],
    tokenizer: PreTrainedTokenizerBase,
    names: Sequence[str],
    options: WordPieceOptions,
    report: LineReport,
    marks: TextMarks | None = None,
) -> list[PieceRow]:
    """All sentences as rows with labels. A tag that is none of ``names`` is an error whatever the rule."""
    numbers = {name: number for number, name in enumerate(names)}
    rows: list[PieceRow] = []
    aligner = WordAligner(tokenizer, options, marks)
    for number, sentence in enumerate(sentences):
        parts = aligner.parts(sentence.words, number, _numbered(sentence, numbers))
        if not parts:
            fault = Fault("no_pieces", "the tokenizer makes nothing of the sentence", " ".join(sentence.words))
            report.left_out(sentence.file, sentence.line, fault)
            continue
        is_cut = options.too_long == "cut" and len(parts) > 1
        report.num_kept += 1
        report.num_cut += is_cut
        rows += parts[:1] if is_cut else parts
    return rows


class WordAligner:
    """Words to rows of pieces, with one tokenizer. ``marks`` give words the numbers that pieces are marked by."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        options: WordPieceOptions,
        marks: TextMarks | None = None,
    ) -> None:
        self.marks = marks
        self.tokenizer = fast_tokenizer(tokenizer)
        self.template: Template = text_template(tokenizer)
        self.options = options
        self.room = None if options.max_tokens is None else options.max_tokens - self.template.num_special
        if self.room is not None and self.room < 1:
            problem = (
                f"{options.max_tokens} leaves no room beside {self.template.num_special} special tokens; give more"
            )
            raise ConfigError("data", [Problem("max_tokens", problem)])

    def parts(
        self, words: Sequence[str], sentence: int = 0, labels: npt.NDArray[np.int32] | None = None
    ) -> list[PieceRow]:
        """The whole sentence in as many rows as it takes, none where no word leaves a piece. ``labels`` has a number
        for each word."""
        ids, owners = self._pieces(words)
        rows = [self._row(ids[part], owners[part], sentence, labels) for part in self._slices(owners)]
        if self.marks is None:
            return rows
        (of_words,) = self.marks.numbers([" ".join(words)], [spans_of_words(words)])
        numbers = np.array([*of_words, UNMARKED], np.uint16)  # -1, no word, is the last
        return [replace(row, marks=numbers[row.words]) for row in rows]

    def _pieces(self, words: Sequence[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Ids, and the number of the word that each is of."""
        text = " ".join(words)
        pieces = pieces_of(text, self.tokenizer)
        owner_of_character = np.full(len(text) + 1, NO_WORD, np.int32)
        for number, (begin, end) in enumerate(spans_of_words(words)):
            owner_of_character[begin:end] = number
        owners = np.full(len(pieces.ids), NO_WORD, np.int32)
        for piece, (start, end) in enumerate(pieces.offsets.tolist()):
            of_piece = owner_of_character[start:end]
            of_words = of_piece[of_piece != NO_WORD]
            owners[piece] = of_words[0] if len(of_words) else NO_WORD
        return pieces.ids, owners

    def _slices(self, owners: npt.NDArray[np.int32]) -> list[slice]:
        """Parts that fit, from the first piece of a word to the last piece of a word, each with as many as possible.

        A word that does not fit by itself keeps as many pieces as there is room for.
        """
        numbers, firsts = np.unique(owners[owners != NO_WORD], return_index=True)
        if not len(numbers):
            return []
        places = np.flatnonzero(owners != NO_WORD)
        begins = places[firsts].tolist()
        ends = [*(places[first - 1] + 1 for first in firsts[1:].tolist()), int(places[-1]) + 1]
        if self.room is None:
            return [slice(0, len(owners))]
        slices: list[slice] = []
        for begin, end in zip(begins, ends, strict=True):
            end = min(end, begin + self.room)
            if slices and end - slices[-1].start <= self.room:
                slices[-1] = slice(slices[-1].start, end)
            else:
                slices.append(slice(begin, end))
        return slices

    def _row(
        self,
        ids: npt.NDArray[np.int32],
        owners: npt.NDArray[np.int32],
        sentence: int,
        labels: npt.NDArray[np.int32] | None,
    ) -> PieceRow:
        before, behind = ([NO_WORD] * len(part) for part in (self.template.before, self.template.behind))
        words = np.concatenate([before, owners, behind]).astype(np.int32)
        row = PieceRow(self.template.joined(ids), sentence=sentence, words=words)
        if labels is None:
            return row
        places, of_words = row.firsts()
        on_pieces = np.full(len(words), IGNORED, np.int32)
        on_pieces[places] = labels[of_words]
        return PieceRow(row.ids, sentence=sentence, words=words, labels=on_pieces)


def spans_of_words(words: Sequence[str]) -> Spans:
    """Where words stand that are joined by blanks."""
    spans, place = [], 0
    for word in words:
        spans.append((place, place + len(word)))
        place += len(word) + 1
    return spans


def tags_of_words(
    rows: Iterable[PieceRow],
    predictions: Iterable[npt.ArrayLike],
    names: Sequence[str],
    num_words: Sequence[int],
    missing: str = OUTSIDE,
) -> list[list[str]]:
    """One tag per word of every sentence, from the number of a tag at every piece of every row, padding or not.

    ``num_words`` has the length of each sentence. A word without a piece, cut off or made of nothing that the
    tokenizer keeps, gets the tag ``missing``.
    """
    tags = [[missing] * length for length in num_words]
    for row, predicted in zip(rows, predictions, strict=True):
        numbers = np.asarray(predicted)
        for place, word in zip(*(found.tolist() for found in row.firsts()), strict=True):
            tags[row.sentence][word] = names[int(numbers[place])]
    return tags


def _numbered(sentence: TaggedSentence, numbers: Mapping[str, int]) -> npt.NDArray[np.int32]:
    for place, tag in enumerate(sentence.tags):
        if tag not in numbers:
            known = ", ".join(list(numbers)[:10]) + (", …" if len(numbers) > 10 else "")
            raise DataError(
                f'{sentence.file}:{sentence.line + place}: tag "{tag}" was never seen in training, '
                f"which knows {known}; mend it, or train on data that has it"
            )
    return np.array([numbers[tag] for tag in sentence.tags], np.int32)
