"""Words of a text, and which of them each piece of a tokenizer is of.

A table of words gives each of them a number; here it comes to the pieces, all of which have that of their word.
Special tokens, and pieces of blanks alone, are of no word and get ``UNMARKED``.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from depthwise.data.store import MARKS
from depthwise.data.templates import fast_tokenizer

UNMARKED = 0
NO_WORD = -1
Spans = Sequence[tuple[int, int]]
"""Words as the places of their characters, ``text[begin:end]``, in order."""
Marks = npt.NDArray[np.uint16]
_FORMS = {"parted": re.compile(r"\w+|[^\w\s]"), "blanks": re.compile(r"\S+")}


def words_of(text: str, form: str) -> list[str]:
    """What stands between blanks: with each sign of punctuation by itself (``parted``), or as it is (``blanks``)."""
    return _FORMS[form].findall(text)


def spans_of(text: str, form: str) -> list[tuple[int, int]]:
    """Where these words stand."""
    return [match.span() for match in _FORMS[form].finditer(text)]


class WordNormalizer:
    """How a tokenizer sees a word before it splits it: in small letters, perhaps, or without accents."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._normalizer = fast_tokenizer(tokenizer).backend_tokenizer.normalizer

    def __call__(self, word: str) -> str:
        seen = word if self._normalizer is None else self._normalizer.normalize_str(word)
        return "".join(seen.split()) or word


class TextMarks(ABC):
    """Gives every word of a text a number, and every piece that of its word.

    ``identity`` tells apart marks that give different numbers.
    """

    form: str
    identity: str

    @abstractmethod
    def numbers(self, texts: Sequence[str], spans: Sequence[Spans]) -> list[list[int]]:
        """The number of every word of every text, where words are the characters of these spans."""

    def words(self, text: str) -> list[tuple[str, int]]:
        """The words of a text with their numbers."""
        (found,) = self.words_of_texts([text])
        return found

    def words_of_texts(self, texts: Sequence[str]) -> list[list[tuple[str, int]]]:
        """The same of many texts at once."""
        spans = [spans_of(text, self.form) for text in texts]
        return [
            [(text[begin:end], number) for (begin, end), number in zip(of_text, numbers, strict=True)]
            for text, of_text, numbers in zip(texts, spans, self.numbers(texts, spans), strict=True)
        ]

    def of_pieces(self, text: str, offsets: npt.NDArray[np.integer]) -> Marks:
        """The number of each piece, made from the characters ``text[start:end]``: that of the first word there."""
        (marks,) = self.of_texts([text], [offsets])
        return marks

    def of_texts(self, texts: Sequence[str], offsets: Sequence[npt.NDArray[np.integer]]) -> list[Marks]:
        """The same for the pieces of many texts at once."""
        spans = [spans_of(text, self.form) for text in texts]
        found = []
        for of_text, numbers, places in zip(spans, self.numbers(texts, spans), offsets, strict=True):
            with_none = np.array([*numbers, UNMARKED], MARKS)  # -1, no word, is the last
            found.append(with_none[owners_of(of_text, places)])
        return found


@dataclass(frozen=True)
class WordMarks(TextMarks):
    """The same number for a word wherever it stands; ``number_of`` knows words as they stand in texts."""

    number_of: Callable[[str], int]
    form: str
    identity: str

    def numbers(self, texts: Sequence[str], spans: Sequence[Spans]) -> list[list[int]]:
        return [
            [self.number_of(text[begin:end]) for begin, end in of_text]
            for text, of_text in zip(texts, spans, strict=True)
        ]


def owners_of(spans: Spans, offsets: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Which word each piece is of: the first that it has characters of, or ``NO_WORD``."""
    if not spans or not len(offsets):
        return np.full(len(offsets), NO_WORD, np.int64)
    begins, ends = np.array(spans).T
    words = np.searchsorted(ends, offsets[:, 0], side="right")
    last = len(spans) - 1
    is_within = (words <= last) & (begins[np.minimum(words, last)] < offsets[:, 1])
    return np.where(is_within, np.minimum(words, last), NO_WORD)


def encoded_with_marks(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], marks: TextMarks
) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of each text, as ``tokenizers.encoded`` gives them, and the mark of every id."""
    if not texts:
        return [], []
    encoding = fast_tokenizer(tokenizer)(
        list(texts),
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    offsets = [np.array(of_text, np.int64).reshape(-1, 2) for of_text in encoding["offset_mapping"]]
    marked = [numbers.tolist() for numbers in marks.of_texts(texts, offsets)]
    ids: list[list[int]] = encoding["input_ids"]
    return ids, marked


def with_special(marks: Marks, special: int | None) -> npt.NDArray[np.int64]:
    """Marks in which pieces of no word have the number ``special``, or else the highest of all words beside them.

    Where there is no word at all that is 1.
    """
    filler = max(int(marks.max(initial=UNMARKED)), 1) if special is None else special
    return np.where(marks == UNMARKED, filler, marks).astype(np.int64)
