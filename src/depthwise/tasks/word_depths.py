"""Tasks on encoders whose words may have depths that are known before the model runs.

The table of words is made from the training data when a run begins, and kept in its folder; or each word gets its depth
where it stands, from a masked language model that is kept there instead, or from a small predictor of what that would
say. Text is marked with the depths of its words
when it is tokenised, and batches carry them as ``depths``: the same in training, validation and test.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from filelock import FileLock
from transformers import CONFIG_NAME

from depthwise.config import WordDepthsConfig, as_dict
from depthwise.config.word_depths import BY_PLACE, BY_RECONSTRUCTION, RECONSTRUCTION, RECONSTRUCTION_PREDICTOR
from depthwise.data import LineReport, Row, TokenStore, build_store
from depthwise.data.building import store_key, tokenizer_identity
from depthwise.data.collate import padded
from depthwise.data.progress import shown
from depthwise.data.words import Spans, TextMarks, WordMarks, WordNormalizer, spans_of, with_special, words_of
from depthwise.depth.mutual_information import Counts, WordCounter, WordCounts
from depthwise.depth.reconstruction import MeanDepths
from depthwise.depth.word_predictor import FILE as PREDICTOR
from depthwise.depth.word_predictor import DistilledDepths, predictor_of_run, save_predictor
from depthwise.depth.word_table import WordTable, word_table
from depthwise.depth.word_table_file import load_word_table, save_word_table
from depthwise.errors import CheckpointError, ConfigError, Problem
from depthwise.shapes import Tensor
from depthwise.tasks.base import Task
from depthwise.tasks.encoding import shortened
from depthwise.tasks.reconstruction import Reconstruction, ReconstructionMarks, weight_files
from depthwise.tasks.word_predictor import PredictorMarks, cached_predictor, learned_depths

FROM_LABELS = ("mutual_information", "random")
"""Estimators that look at labels."""
NO_LABEL = ""
"""Stands for all labels where none is looked at."""
LEAST = 1
KEPT = "reconstruction"
"""Where a run keeps the masked language model that its depths come from."""
TEXTS_AT_ONCE = 1024

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
    def marks(self) -> TextMarks | None:
        """What gives the pieces of a text their depths."""
        return None if self.word_options is None else self._marks

    @property
    def has_word_table(self) -> bool:
        """Whether a word has the same depth wherever it stands."""
        return self.word_options is not None and self.word_options.estimator not in BY_PLACE

    @cached_property
    def _marks(self) -> TextMarks:
        assert self.options.word_depths is not None
        if self.options.word_depths.estimator == RECONSTRUCTION:
            return self._by_reconstruction(self.options.word_depths)
        if self.options.word_depths.estimator == RECONSTRUCTION_PREDICTOR:
            return PredictorMarks(self._distilled(self.options.word_depths), self.tokenizers.source)
        table = self.word_table
        return WordMarks(
            _DepthOf(table, WordNormalizer(self.tokenizers.source)), table.options.words, identity=table.digest
        )

    @cached_property
    def word_table(self) -> WordTable:
        """The depths of words: those that the run has, or made from its training data."""
        options, made_for = self.options.word_depths, self._made_for
        assert options is not None
        if self.run_folder is None and options.estimator in BY_RECONSTRUCTION:
            means = MeanDepths(WordNormalizer(self.tokenizers.source))
            for text, spans, numbers in self._marked_texts("train", self._by_reconstruction(options)):
                means.add((text[begin:end], number) for (begin, end), number in zip(spans, numbers, strict=True))
            return means.table(options, **made_for)
        if self.run_folder is None:
            matched = options.estimator == "random" and options.matched == "tokens"
            counts_tokens = matched or options.bins == "tokens"
            counter = WordCounter(WordNormalizer(self.tokenizers.source), occurrences=counts_tokens)
            counter.add(self._documents(options))
            counts = counter.counts()
            tokens = self._tokens(counts) if counts_tokens else None
            return word_table(counts, options, **made_for, tokens=tokens, seed=self.recipe.seed)
        table = load_word_table(self.run_folder, **made_for)
        self._check_options(table.options)
        return table

    @property
    def _made_for(self) -> dict[str, Any]:
        """What depths of words have to be made for."""
        assert self.options.encoder is not None
        tokenizer = tokenizer_identity(self.tokenizers.source)
        return {"num_layers": self.options.encoder.num_layers, "tokenizer": tokenizer}

    def _check_options(self, made_with: WordDepthsConfig) -> None:
        if made_with != self.options.word_depths:
            raise CheckpointError(
                f"the depths of words in {self.run_folder} were made with other options than the model names; "
                "use the run as it was trained"
            )

    def _tokens(self, counts: WordCounts) -> Counts:
        """How many tokens each word makes up in all documents."""
        assert counts.occurrences is not None
        pieces = self.tokenizers.source(list(counts.words), add_special_tokens=False, verbose=False)["input_ids"]
        tokens: Counts = counts.occurrences * np.array([max(1, len(ids)) for ids in pieces], np.int64)
        return tokens

    # Words that are masked, one after the other

    def _by_reconstruction(self, options: WordDepthsConfig) -> ReconstructionMarks:
        """The masked language model that the run keeps or, before training, that the recipe names."""
        assert options.run is not None
        folder = Path(options.run) if self.run_folder is None else self.run_folder / KEPT
        estimator = Reconstruction(folder, self.cache, options.copies)
        assert self.options.encoder is not None
        wanted = self.options.encoder.num_layers
        if estimator.num_layers != wanted:
            raise CheckpointError(
                f"{folder} has {estimator.num_layers} layers, but the model has {wanted}; give a masked language "
                "model with as many"
            )
        if tokenizer_identity(estimator.tokenizer) != tokenizer_identity(self.tokenizers.source):
            raise CheckpointError(f"{folder} has another tokenizer than the model; set tokenizer.path={folder}")
        return ReconstructionMarks(estimator, float(options.penalty), options.words)

    def word_texts(self, split: str, report: LineReport, form: str) -> Iterator[tuple[str, Spans]]:
        """Every text of a split, and where its words stand."""
        for example in self.corpus(split).examples(report):
            yield from ((text, spans_of(text, form)) for text in example.texts)

    def _distilled(self, options: WordDepthsConfig) -> DistilledDepths:
        """The predictor that the run keeps, or one that has learned from the depths of its training texts."""
        if self.run_folder is not None:
            found = predictor_of_run(self.run_folder, **self._made_for)
            self._check_options(found.options)
            return found
        exact, num_layers, seed = self._by_reconstruction(options), self._made_for["num_layers"], self.recipe.seed

        def learned() -> DistilledDepths:
            marked = self._marked_texts("train", exact)
            return learned_depths(marked, self.tokenizers.source, options, num_layers=num_layers, seed=seed)

        content = [self.kind, as_dict(options), exact.identity, self.corpus("train").identity(), seed]
        return cached_predictor(self.cache, content, learned)

    def _marked_texts(self, split: str, marks: ReconstructionMarks) -> Iterator[tuple[str, Spans, list[int]]]:
        """Every text, its words and their depths; whatever was found is in the cache then."""
        corpus, path = self.corpus(split), marks.estimator.cache.path
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = self.word_texts(split, LineReport(self.rules), marks.form)
        stream = iter(shown(texts, f"masking the words of {corpus.name}", self.num_word_texts(split)))
        with FileLock(path.with_suffix(".lock")):  # other processes find it all there
            while batch := list(islice(stream, TEXTS_AT_ONCE)):
                numbers = marks.numbers([text for text, _ in batch], [spans for _, spans in batch])
                for (text, spans), of_text in zip(batch, numbers, strict=True):
                    yield text, spans, of_text

    def num_word_texts(self, split: str) -> int | None:
        """How many there are at most, for a progress bar."""
        corpus = self.corpus(split)
        return corpus.num_lines() * corpus.num_texts

    def prepare_words(self, split: str) -> None:
        """Find the depths of all words of a split together, where they follow from their places."""
        marks = self.marks
        if not isinstance(marks, ReconstructionMarks):
            return
        for _ in self._marked_texts(split, marks):
            pass

    # Words that are counted

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
        corpus, options, marks = self.corpus(split), self.store_options(split), self.marks
        tokenizers = self._tokenizers_of(corpus)
        if not (self.cache / store_key(corpus, tokenizers, options, marks)).exists():
            self.prepare_words(split)
        return build_store(corpus, tokenizers, options, self.cache, marks)

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
        marks = None if self.options.word_depths is None else self._marks
        if isinstance(marks, ReconstructionMarks):
            _keep(marks.estimator, folder / KEPT)
        elif isinstance(marks, PredictorMarks):
            save_predictor(marks.found, folder / PREDICTOR)
        elif marks is not None:
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


def _keep(estimator: Reconstruction, folder: Path) -> None:
    """Copy what estimates depths into the folder of a run, so that the run works wherever it is taken."""
    if folder.resolve() == estimator.folder.resolve():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for path in (estimator.folder / CONFIG_NAME, *weight_files(estimator.folder)):
        shutil.copyfile(path, folder / path.name)
    for index in estimator.folder.glob("*.safetensors.index.json"):
        shutil.copyfile(index, folder / index.name)
    estimator.tokenizer.save_pretrained(folder)


def with_table_of(task: T, folder: Path | None) -> T:
    """The task, whose table of words lies in the folder of its run or, without one, is yet to be made."""
    if task.recipe.model.get("word_depths") is None:
        return task
    if not isinstance(task, WordDepthTask):
        message = f"are no part of {task.kind}; use them for text_classification, tagging or question_answering"
        raise ConfigError("recipe", [Problem("model.word_depths", message)])
    task.run_folder = folder
    return task
