"""Tasks on encoders whose words may have depths that are known before the model runs.

The table of words is made from the training data when a run begins, and kept in its folder. Text is marked with the
depths of its words when it is tokenised, and batches carry them as ``depths``: the same in training, validation and
test.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from depthwise.config import WordDepthsConfig
from depthwise.data import LineReport, Row, TokenStore, build_store
from depthwise.data.building import tokenizer_identity
from depthwise.data.collate import padded
from depthwise.data.progress import shown
from depthwise.data.words import WordMarks, WordNormalizer, with_special, words_of
from depthwise.depth.mutual_information import WordCounter
from depthwise.depth.word_table import WordTable, word_table
from depthwise.depth.word_table_file import load_word_table, save_word_table
from depthwise.errors import CheckpointError, ConfigError, Problem
from depthwise.shapes import Tensor
from depthwise.tasks.base import Task
from depthwise.tasks.encoding import shortened

FROM_LABELS = ("mutual_information", "random")
"""Estimators that look at labels."""
NO_LABEL = ""
"""Stands for all labels where none is looked at."""
LEAST = 1

Document = tuple[Iterable[str], str | None]
T = TypeVar("T", bound=Task)


class WordDepthTask(Task):
    """A task whose model may run every word as deep as a table says.

    ``run_folder`` is where the table lies; none means that it is to be made from the training data.
    """

    run_folder: Path | None = None
    ignores_words: bool = False
    """Whether all tokens run all blocks, whatever the table says."""

    @property
    def word_options(self) -> WordDepthsConfig | None:
        """How the depths of words were found; none where they have none, or are ignored."""
        return None if self.ignores_words else self.options.word_depths

    @property
    def marks(self) -> WordMarks | None:
        """What gives the pieces of a text their depths."""
        return None if self.word_options is None else self._marks

    @cached_property
    def _marks(self) -> WordMarks:
        table = self.word_table
        return WordMarks(
            _DepthOf(table, WordNormalizer(self.tokenizers.source)), table.options.words, identity=table.digest
        )

    @cached_property
    def word_table(self) -> WordTable:
        """The depths of words: those that the run has, or made from its training data."""
        options, encoder = self.options.word_depths, self.options.encoder
        assert options is not None
        assert encoder is not None
        made_for: dict[str, Any] = {
            "num_layers": encoder.num_layers,
            "tokenizer": tokenizer_identity(self.tokenizers.source),
        }
        if self.run_folder is None:
            counter = WordCounter(WordNormalizer(self.tokenizers.source))
            counter.add(self._documents(options))
            return word_table(counter.counts(), options, **made_for)
        table = load_word_table(self.run_folder, **made_for)
        if table.options != options:
            raise CheckpointError(
                f"the depths of words in {self.run_folder} were made with other options than the model names; "
                "use the run as it was trained"
            )
        return table

    def _documents(self, options: WordDepthsConfig) -> Iterator[Document]:
        corpus = self.corpus("train")
        report = LineReport(self.rules)
        looks_at_labels = options.estimator in FROM_LABELS
        if looks_at_labels:
            self.check_labels_tell(options)
        documents = self.word_documents(report, options.words)
        for words, label in shown(documents, f"counting the words of {corpus.name}", self.num_word_documents()):
            yield words, label if looks_at_labels else NO_LABEL

    def check_labels_tell(self, options: WordDepthsConfig) -> None:
        """Raises an error where nothing is told about labels."""

    def num_word_documents(self) -> int | None:
        """How many there are at most, for a progress bar."""
        return self.corpus("train").num_lines()

    def word_documents(self, report: LineReport, form: str) -> Iterator[Document]:
        """The words of every training example with its label."""
        for example in self.corpus("train").examples(report):
            yield (word for text in example.texts for word in words_of(text, form)), example.label

    def words_with_depths(self, texts: Sequence[str]) -> list[tuple[str, int]]:
        """The words of an input, in order, and how many blocks each runs."""
        assert self.marks is not None
        return [pair for text in texts for pair in self.marks.words(text)]

    # What changes where words have depths

    def store(self, split: str) -> TokenStore:
        corpus = self.corpus(split)
        return build_store(corpus, self._tokenizers_of(corpus), self.store_options(split), self.cache, self.marks)

    def with_depths(self, batch: dict[str, Tensor], marks: Iterable[npt.NDArray[Any] | None]) -> dict[str, Tensor]:
        """A batch with the depth of every token, 0 on padding, from the marks of its rows."""
        options = self.word_options
        if options is None:
            return batch
        assert self.options.encoder is not None
        special = {"max_of_sequence": None, "min": LEAST, "all": self.options.encoder.num_layers}[options.special]
        rows = []
        for numbers in marks:
            assert numbers is not None, "text is marked when it is tokenised"
            rows.append(with_special(numbers, special))
        return {**batch, "depths": padded(rows, 0)[0]}

    @property
    def fillers(self) -> dict[str, int]:
        return {**super().fillers, "depths": 0}

    def cut(self, row: Row, most: int | None = None) -> Row:
        kept = super().cut(row, most)
        if kept is row or kept.marks is None:
            return kept
        pairs = zip(kept.marks, kept.texts, strict=True)
        return replace(kept, marks=tuple(shortened(numbers, len(ids)) for numbers, ids in pairs))

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self.options.word_depths is not None:
            save_word_table(self.word_table, folder)


class _DepthOf:
    """The depth of a word as it stands in a text. Those that were asked for before are remembered, up to a limit."""

    LIMIT = 1 << 18

    def __init__(self, table: WordTable, normalize: Callable[[str], str]) -> None:
        self._table, self._normalize = table, normalize
        self._known: dict[str, int] = {}

    def __call__(self, word: str) -> int:
        found = self._known.get(word)
        if found is None:
            found = self._table.depth_of(self._normalize(word))
            if len(self._known) < self.LIMIT:
                self._known[word] = found
        return found


def with_table_of(task: T, folder: Path | None) -> T:
    """The task, whose table of words lies in the folder of its run or, without one, is yet to be made."""
    if task.recipe.model.get("word_depths") is None:
        return task
    if not isinstance(task, WordDepthTask):
        message = f"are no part of {task.kind}; use them for text_classification, tagging or question_answering"
        raise ConfigError("recipe", [Problem("model.word_depths", message)])
    task.run_folder = folder
    return task
