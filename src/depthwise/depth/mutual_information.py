"""What a word tells about the label of its document, counted in one pass over any number of documents.

For a word x and a label y, each of D documents either has the word (a) or not, and either has the label (b) or not:

    n_ab                  documents of each of the four kinds
    P(a, b)               (n_ab + s) / (D + 4 s), marginals being sums of these
    MI(x)                 Σ_y Σ_a Σ_b P(a, b) log [ P(a, b) / (P(a) P(b)) ]        in nats

A word counts once in a document, however often it stands there. Ours -> symbols: added_count -> s. The smoothing of the
joint counts keeps MI finite and at least 0.

Source: Liu et al. 2021, "Faster Depth-Adaptive Transformers", section 3.1.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

from depthwise.errors import DataError

Counts = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
CHUNK_DOCUMENTS = 4096
"""Documents that are counted at once."""
CHUNK_WORDS = 1 << 14
"""Words whose information is computed at once."""
ONE_LABEL = "mutual information needs at least two labels; give data with more, or choose the estimator frequency"
NO_LABEL = "mutual information is that of words and labels; give labels, or choose the estimator frequency"


@dataclass(frozen=True)
class WordCounts:
    """In how many documents of each label (columns) each word (rows) stands, and how many documents there are."""

    words: tuple[str, ...]
    labels: tuple[str, ...]
    present: Counts
    """(words, labels)"""
    documents: Counts
    """(labels,)"""
    occurrences: Counts | None = None
    """(words,) how often each stands in all documents together, where somebody has asked for it."""

    @property
    def num_documents(self) -> int:
        return int(self.documents.sum())

    def frequencies(self) -> Counts:
        """In how many documents each word stands."""
        frequencies: Counts = self.present.sum(axis=1)
        return frequencies

    def information(self, added_count: float) -> Values:
        """MI of every word."""
        self._check_labels()
        parts = [
            self._information_of(self.present[begin : begin + CHUNK_WORDS], added_count)
            for begin in range(0, len(self.words), CHUNK_WORDS)
        ]
        return np.concatenate(parts) if parts else np.empty(0)

    def unseen_information(self, added_count: float) -> float:
        """MI of a word that stands in no document: that of the added counts alone."""
        self._check_labels()
        return float(self._information_of(np.zeros((1, len(self.labels)), np.int64), added_count)[0])

    def _information_of(self, present: Counts, added_count: float) -> Values:
        both = present
        word_only = present.sum(axis=1, keepdims=True) - present
        label_only = self.documents - present
        neither = self.num_documents - both - word_only - label_only
        of_labels: Values = information(both, word_only, label_only, neither, added_count).sum(axis=1)
        return of_labels

    def _check_labels(self) -> None:
        if len(self.labels) < 2:
            only = f'all documents have the label "{self.labels[0]}"; ' if self.labels else ""
            raise DataError(f"{only}{ONE_LABEL}")


def information(both: Counts, word_only: Counts, label_only: Counts, neither: Counts, added_count: float) -> Values:
    """MI of tables of four counts, each by itself."""
    cells = np.stack([np.asarray(cell, np.float64) for cell in (both, word_only, label_only, neither)]) + added_count
    cells /= cells.sum(axis=0)
    with_word, without_word = cells[0] + cells[1], cells[2] + cells[3]
    with_label, without_label = cells[0] + cells[2], cells[1] + cells[3]
    expected = np.stack(
        [with_word * with_label, with_word * without_label, without_word * with_label, without_word * without_label]
    )
    found: Values = (cells * np.log(cells / expected)).sum(axis=0)
    return np.maximum(found, 0.0)  # which rounding may miss by the last digit


class WordCounter:
    """Counts documents as they come. Memory grows with the number of different words, not of documents.

    ``normalize`` says under which name a word is counted; words with the same name are one. Each way of writing is
    asked about once. ``occurrences`` are counted too on request.
    """

    def __init__(self, normalize: Callable[[str], str] | None = None, *, occurrences: bool = False) -> None:
        self._occurrences: Counts | None = np.zeros(1024, np.int64) if occurrences else None
        self._numbers: dict[str, int] = {}
        self._number_of: Mapping[str, int] = _Numbered(self._numbers, normalize)
        self._labels: dict[str, int] = {}
        self._present: Counts = np.zeros((1024, 2), np.int64)
        self._documents: list[int] = []

    def add(self, documents: Iterable[tuple[Iterable[str], str | None]]) -> None:
        """Count documents, each as its words and its label."""
        stream = iter(documents)
        while chunk := list(islice(stream, CHUNK_DOCUMENTS)):
            self._count(chunk)

    def counts(self) -> WordCounts:
        """What was counted so far; labels are sorted by name."""
        names = sorted(self._labels)
        order = [self._labels[name] for name in names]
        documents = np.array([self._documents[number] for number in order], np.int64)
        present = self._present[: len(self._numbers)][:, order]
        occurrences = None if self._occurrences is None else self._occurrences[: len(self._numbers)]
        return WordCounts(tuple(self._numbers), tuple(names), present, documents, occurrences)

    def _count(self, chunk: list[tuple[Iterable[str], str | None]]) -> None:
        label_numbers = np.array([self._label(label) for _, label in chunk], np.int64)
        number_of = self._number_of.__getitem__
        if self._occurrences is None:
            distinct = [set(map(number_of, words)) for words, _ in chunk]
        else:
            every = [list(map(number_of, words)) for words, _ in chunk]
            self._add_occurrences(np.fromiter(chain.from_iterable(every), np.int64))
            distinct = list(map(set, every))
        sizes = np.fromiter(map(len, distinct), np.int64, len(distinct))
        numbers = np.fromiter(chain.from_iterable(distinct), np.int64, int(sizes.sum()))
        self._make_room()
        places = numbers * self._present.shape[1] + np.repeat(label_numbers, sizes)
        np.add.at(self._present.reshape(-1), places, 1)

    def _add_occurrences(self, numbers: Counts) -> None:
        assert self._occurrences is not None
        found = np.bincount(numbers, minlength=_doubled(len(self._occurrences), len(self._numbers)))
        found[: len(self._occurrences)] += self._occurrences
        self._occurrences = found

    def _label(self, label: str | None) -> int:
        if label is None:
            raise DataError(NO_LABEL)
        number = self._labels.setdefault(label, len(self._labels))
        if number == len(self._documents):
            self._documents.append(0)
        self._documents[number] += 1
        return number

    def _make_room(self) -> None:
        rows, columns = self._present.shape
        wanted = (_doubled(rows, len(self._numbers)), _doubled(columns, len(self._labels)))
        if wanted != (rows, columns):
            larger = np.zeros(wanted, np.int64)
            larger[:rows, :columns] = self._present
            self._present = larger


class _Numbered(dict[str, int]):
    """The number of every way of writing a word; new names get the next one."""

    def __init__(self, numbers: dict[str, int], normalize: Callable[[str], str] | None) -> None:
        super().__init__()
        self._numbers, self._normalize = numbers, normalize

    def __missing__(self, word: str) -> int:
        name = word if self._normalize is None else self._normalize(word)
        number = self._numbers.setdefault(name, len(self._numbers))
        self[word] = number
        return number


def _doubled(size: int, wanted: int) -> int:
    while size < wanted:
        size *= 2
    return size


def split_documents(lines: Iterable[tuple[str, str | None]]) -> Iterator[tuple[list[str], str | None]]:
    """Texts with their labels as documents of words, which stand between blanks."""
    return ((text.split(), label) for text, label in lines)
