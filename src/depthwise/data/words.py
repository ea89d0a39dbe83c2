"""Words of a text, and which of them each piece of a tokenizer is of.

A table of words gives each of them a number; here it comes to the pieces, all of which have that of their word.
Special tokens, and pieces of blanks alone, are of no word and get ``UNMARKED``.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from depthwise.data.store import MARKS
from depthwise.data.templates import fast_tokenizer

UNMARKED = 0
Marks = npt.NDArray[np.uint16]
_FORMS = {"parted": re.compile(r"\w+|[^\w\s]"), "blanks": re.compile(r"\S+")}


def words_of(text: str, form: str) -> list[str]:
    """What stands between blanks: with each sign of punctuation by itself (``parted``), or as it is (``blanks``)."""
    return _FORMS[form].findall(text)


class WordNormalizer:
    """How a tokenizer sees a word before it splits it: in small letters, perhaps, or without accents."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._normalizer = fast_tokenizer(tokenizer).backend_tokenizer.normalizer

    def __call__(self, word: str) -> str:
        seen = word if self._normalizer is None else self._normalizer.normalize_str(word)
        return "".join(seen.split()) or word


@dataclass(frozen=True)
class WordMarks:
    """Gives every piece the number of its word; ``number_of`` knows words as they stand in the text.

    ``identity`` tells apart marks that give different numbers.
    """

    number_of: Callable[[str], int]
    form: str
    identity: str

    def words(self, text: str) -> list[tuple[str, int]]:
        """The words of a text with their numbers."""
        return [(word, self.number_of(word)) for word in words_of(text, self.form)]

    def of_pieces(self, text: str, offsets: npt.NDArray[np.integer]) -> Marks:
        """The number of each piece, made from the characters ``text[start:end]``: that of the first word there."""
        found = [(match.start(), match.end(), match.group()) for match in _FORMS[self.form].finditer(text)]
        if not found or not len(offsets):
            return np.full(len(offsets), UNMARKED, MARKS)
        begins = np.array([begin for begin, _, _ in found])
        ends = np.array([end for _, end, _ in found])
        numbers = np.array([self.number_of(word) for _, _, word in found], MARKS)
        words = np.searchsorted(ends, offsets[:, 0], side="right")
        last = len(found) - 1
        is_within = (words <= last) & (begins[np.minimum(words, last)] < offsets[:, 1])
        return np.where(is_within, numbers[np.minimum(words, last)], UNMARKED).astype(MARKS)


def encoded_with_marks(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], marks: WordMarks
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
    offsets = (np.array(of_text, np.int64).reshape(-1, 2) for of_text in encoding["offset_mapping"])
    marked = [marks.of_pieces(text, places).tolist() for text, places in zip(texts, offsets, strict=True)]
    ids: list[list[int]] = encoding["input_ids"]
    return ids, marked


def with_special(marks: Marks, special: int | None) -> npt.NDArray[np.int64]:
    """Marks in which pieces of no word have the number ``special``, or else the highest of all words beside them.

    Where there is no word at all that is 1.
    """
    filler = max(int(marks.max(initial=UNMARKED)), 1) if special is None else special
    return np.where(marks == UNMARKED, filler, marks).astype(np.int64)
