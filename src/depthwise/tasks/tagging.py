"""Tagging: words in, a tag for each word out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from depthwise.config import Recipe
from depthwise.data import (
    ConllColumns,
    Corpus,
    Example,
    JoinedCorpus,
    LineReport,
    PieceRow,
    Row,
    Rows,
    TaggedSentence,
    TaggingCollator,
    Tokenizers,
    WordAligner,
    WordPieceOptions,
    tag_names,
    tagged_rows,
    tags_of_words,
)
from depthwise.data.progress import shown
from depthwise.data.tags import OUTSIDE
from depthwise.data.word_pieces import spans_of_words
from depthwise.data.words import Spans
from depthwise.errors import DataError, InputError
from depthwise.losses import IGNORED, label_smoothed_cross_entropy
from depthwise.metrics import Comparison, Score, accuracy, entity_counts, entity_report, f1_of_counts, paired_bootstrap
from depthwise.models.token_classification import DepthwiseForTokenClassification
from depthwise.shapes import Tensor
from depthwise.tasks.encoding import inputs_in, least, padded_sizes, placed, portions
from depthwise.tasks.sources import tagged
from depthwise.tasks.teaching import lesson_in, with_teacher
from depthwise.tasks.values import Losses, Prediction
from depthwise.tasks.word_depths import Document, WordDepthTask

ACCURACY = "accuracy"
OF_ENTITIES = ("f1", "precision", "recall", "f1_macro")
PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceRow(Row):
    """A sentence as pieces: in one part, or in several where it is too long for the model."""

    parts: tuple[PieceRow, ...]
    num_words: int


class Tagging(WordDepthTask):
    """Cross-entropy of the tag of every word, which its first piece carries; F1 of entities.

    As text, the words of a sentence stand with blanks between them, and so do their tags.
    """

    kind = "tagging"
    item = "words"
    model_class = DepthwiseForTokenClassification
    too_long = "split"
    has_lines = False
    num_inputs = 1

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers, label_names: tuple[str, ...] | None = None) -> None:
        super().__init__(recipe, tokenizers)
        self._label_names = label_names

    @property
    def has_entities(self) -> bool:
        return self.recipe.data.tag_scheme != PLAIN

    @property
    def metric(self) -> str:  # type: ignore[override]
        return self.default_metrics()[0]

    @property
    def label_names(self) -> tuple[str, ...]:
        """The tags in the order of their numbers: those of the training data, and for each ``B-`` its ``I-``."""
        if self._label_names is None:
            found = tag_names(self._sentences("train", LineReport(self.rules)))
            if len(found) < 2:
                files = self.corpus("train").name
                raise DataError(f"{files}: there are fewer than two tags to tell apart; give data that has more")
            self._label_names = found
        return self._label_names

    # Data

    def corpus(self, split: str) -> JoinedCorpus[ConllColumns]:
        return tagged(self.recipe.data, self.check_split(split))

    def _sentences(self, split: str, report: LineReport) -> Iterator[TaggedSentence]:
        for part in self.corpus(split).parts:
            yield from part.sentences(report)

    def _tokenizers_of(self, corpus: Corpus) -> Sequence[PreTrainedTokenizerBase]:
        return [self.tokenizers.source]

    def examples(self, split: str) -> Rows[PieceRow]:
        chosen_by = self.recipe.training.metric or self.metric
        if split == "train" and self.recipe.data.valid and chosen_by in OF_ENTITIES:
            entity_report([[OUTSIDE]], [[OUTSIDE]])  # says now, not after an epoch, that a library is missing
        self.prepare_words(split)
        corpus, report = self.corpus(split), LineReport(self.rules)
        sentences = shown(self._sentences(split, report), f"tokenising {corpus.name}", corpus.num_lines())
        tokenizer, options = self.tokenizers.source, self._piece_options()
        rows = tagged_rows(sentences, tokenizer, self.label_names, options, report, self.marks)
        if not rows:
            raise DataError(f"{corpus.name}: no sentence can be used; {report.summary()}")
        return Rows(rows, report)

    def _piece_options(self, most: int | None = None) -> WordPieceOptions:
        data = self.recipe.data
        return WordPieceOptions(least(self.max_tokens, data.max_tokens, most), data.too_long or self.too_long)

    @property
    def max_tokens(self) -> int | None:
        assert self.options.encoder is not None
        return self.options.encoder.max_positions

    # Model

    def config_options(self) -> dict[str, Any]:
        names = dict(enumerate(self.label_names))
        return {"id2label": names, "label2id": {name: number for number, name in names.items()}}

    # Learning

    def collate(self, rows: Sequence[PieceRow]) -> dict[str, Tensor]:  # type: ignore[override]
        return self.with_depths(TaggingCollator(self.tokenizers.source.pad_token_id)(rows), (row.marks for row in rows))

    def word_documents(self, report: LineReport, form: str) -> Iterator[Document]:
        """Every word with its tag; what a word is, the data has decided."""
        for sentence in self._sentences("train", report):
            yield from (((word,), tag) for word, tag in zip(sentence.words, sentence.tags, strict=True))

    def word_texts(self, split: str, report: LineReport, form: str) -> Iterator[tuple[str, Spans]]:
        for sentence in self._sentences(split, report):
            yield " ".join(sentence.words), spans_of_words(sentence.words)

    def words_with_depths(self, texts: Sequence[str]) -> list[tuple[str, int]]:
        assert self.marks is not None
        sentences = [_words(text) for text in texts]
        numbers = self.marks.numbers([" ".join(words) for words in sentences], list(map(spans_of_words, sentences)))
        return [pair for pairs in map(zip, sentences, numbers) for pair in pairs]

    def num_items(self, batch: Mapping[str, Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def losses(self, model: PreTrainedModel, batch: Mapping[str, Tensor], num_items: Tensor | int | None) -> Losses:
        labels, training = batch["labels"], self.recipe.training
        if (taught := self.taught(model, lesson_in(batch), num_items)) is not None:
            return taught
        logits = model(**inputs_in(batch)).logits
        smoothed = label_smoothed_cross_entropy(
            logits, labels, training.label_smoothing, num_items, over_others=training.smoothing_over_others
        )
        loss = with_teacher(smoothed.loss, logits, batch, training, num_items)
        correct = (logits.detach().argmax(-1) == labels).sum().float()
        return Losses(loss, {"nll": smoothed.nll_sum, "correct": correct})

    def validation_metrics(self, totals: Mapping[str, float], num_items: float) -> dict[str, float]:
        return {
            "loss": totals["loss"] / num_items,
            "nll": totals["nll"] / num_items,
            ACCURACY: 100 * totals["correct"] / num_items,
            **self.exit_metrics(totals, num_items),
        }

    # Predicting

    @cached_property
    def _aligner(self) -> WordAligner:
        options = self._piece_options(most=self.recipe.evaluation.batch_tokens)
        return WordAligner(self.tokenizers.source, options, self.marks)

    def whole_rows(self, texts: Sequence[tuple[str, ...]]) -> list[Row]:
        return [self._row(index, _words(text), None) for index, (text,) in enumerate(texts)]

    def _row(self, index: int, words: Sequence[str], labels: npt.NDArray[np.int32] | None) -> SentenceRow:
        parts = tuple(self._aligner.parts(words, labels=labels))
        ids = np.concatenate([part.ids for part in parts]) if parts else np.empty(0, np.int32)
        return SentenceRow(index, (ids,), None, parts=parts, num_words=len(words))

    def cut(self, row: Row, most: int | None = None) -> Row:
        """The first part of a sentence, if that is the rule; parts are short enough as they are."""
        assert isinstance(row, SentenceRow)
        if self._aligner.options.too_long == "split" or len(row.parts) < 2:
            return row
        return replace(row, texts=(row.parts[0].ids,), parts=row.parts[:1])

    @property
    def text_limits(self) -> tuple[int | None, ...]:
        return (self._aligner.options.max_tokens,)

    def row_lengths(self, rows: Sequence[Row]) -> npt.NDArray[np.int32]:
        """No more than a batch holds: what exceeds that goes through the model in portions."""
        parts = [row.parts for row in rows if isinstance(row, SentenceRow)]
        return padded_sizes(parts, self.recipe.evaluation.batch_tokens)

    @torch.no_grad()
    def predictions(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[Prediction]:
        tags: list[npt.NDArray[np.int64]] = []
        depths: list[list[int]] = []
        for batch in self._batches_of(model, rows):
            output = model(**inputs_in(batch))
            tags += list(output.logits.argmax(-1).cpu().numpy())
            depths += output.depths.tolist()
        found, begin = [], 0
        missing = OUTSIDE if OUTSIDE in self.label_names else self.label_names[0]
        for row in rows:
            assert isinstance(row, SentenceRow)
            here = slice(begin, begin + len(row.parts))
            (words,) = tags_of_words(row.parts, tags[here], self.label_names, [row.num_words], missing)
            ran = tuple(depth for part in depths[here] for depth in part if depth)
            found.append(Prediction(" ".join(words), None, ran))
            begin += len(row.parts)
        return found

    @torch.no_grad()
    def log_probabilities(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[float]:
        """Sum over the words that have pieces."""
        sums: list[float] = []
        for batch in self._batches_of(model, rows):
            log_probs = model(**inputs_in(batch)).logits.double().log_softmax(-1)
            labels = batch["labels"]
            of_labels = log_probs.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
            sums += of_labels.masked_fill(labels == IGNORED, 0).sum(1).tolist()
        found, begin = [], 0
        for row in rows:
            assert isinstance(row, SentenceRow)
            found.append(sum(sums[begin : begin + len(row.parts)]))
            begin += len(row.parts)
        return found

    def _batches_of(self, model: PreTrainedModel, rows: Sequence[Row]) -> Iterator[dict[str, Tensor]]:
        """All parts of all rows, in order, as batches on the device of the model."""
        parts = [part for row in rows if isinstance(row, SentenceRow) for part in row.parts]
        for portion in portions(parts, self.recipe.evaluation.batch_tokens):
            yield placed(self.collate(portion), model.device)

    def scored_rows(self, texts: Sequence[tuple[str, ...]], outputs: Sequence[str]) -> list[Row]:
        places = {name: number for number, name in enumerate(self.label_names)}
        rows: list[Row] = []
        for index, ((text,), output) in enumerate(zip(texts, outputs, strict=True)):
            words, tags = _words(text), _words(output)
            if len(words) != len(tags):
                raise InputError(f"there are {len(words)} words but {len(tags)} tags; give one for each word")
            unknown = [tag for tag in tags if tag not in places]
            if unknown:
                raise InputError(f'"{unknown[0]}" is no tag of this model, which knows {", ".join(places)}')
            rows.append(self._row(index, words, np.array([places[tag] for tag in tags], np.int32)))
        return rows

    # Scoring

    def default_metrics(self) -> tuple[str, ...]:
        return ("f1", ACCURACY) if self.has_entities else (ACCURACY,)

    def known_metrics(self) -> tuple[str, ...]:
        return (*OF_ENTITIES, ACCURACY) if self.has_entities else (ACCURACY,)

    def check_examples(self, examples: Sequence[Example]) -> None:
        for example in examples:
            for place, tag in enumerate(_words(example.label or "")):
                if tag not in self.label_names:
                    raise DataError(
                        f'{example.file}:{example.line + place}: tag "{tag}" was never seen in training, which knows '
                        f"{', '.join(self.label_names)}; mend it, or train on data that has it"
                    )
        self.score([example.label or "" for example in examples[:1]], examples[:1])

    def score(self, predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, Score]:
        ours, right = _aligned(predictions, examples)
        scores = {}
        if any(name in OF_ENTITIES for name in self.metrics):
            report = entity_report(ours, right)
            values = {
                "f1": report.overall.f1,
                "precision": report.overall.precision,
                "recall": report.overall.recall,
                "f1_macro": report.macro_f1,
            }
            how = f"entities:{report.overall.num_there}|scheme:iob2|scale:100"
            scores = {name: Score(f"entity {name}", value, how) for name, value in values.items()}
        words = [[tag for sentence in side for tag in sentence] for side in (ours, right)]
        scores[ACCURACY] = Score(ACCURACY, 100 * accuracy(*words), f"words:{len(words[0])}|scale:100")
        return {name: scores[name] for name in self.metrics}

    @property
    def compared_by(self) -> str:
        return ACCURACY if self.metrics[0] == ACCURACY else "f1"

    def compare(self, ours: Sequence[str], theirs: Sequence[str], examples: Sequence[Example]) -> Comparison:
        by_words = self.compared_by == ACCURACY
        count = _right_words if by_words else entity_counts
        mine, other = (count(*_aligned(side, examples)) for side in (ours, theirs))
        return paired_bootstrap(mine, other, _share_of_counts if by_words else f1_of_counts)


def _words(text: str) -> list[str]:
    """What stands between blanks; other white space is part of a word, as in columns."""
    return [word for word in text.split(" ") if word]


def _aligned(predictions: Sequence[str], examples: Sequence[Example]) -> tuple[list[list[str]], list[list[str]]]:
    """Tags that were predicted and tags that are right, of which there must be as many."""
    ours, right = [_words(text) for text in predictions], [_words(example.label or "") for example in examples]
    for mine, tags, example in zip(ours, right, examples, strict=True):
        if len(mine) != len(tags):
            raise DataError(
                f"{example.file}:{example.line}: {len(mine)} tags were predicted for the {len(tags)} words of this "
                "sentence; give one for each word"
            )
    return ours, right


def _right_words(ours: list[list[str]], right: list[list[str]]) -> npt.NDArray[np.float64]:
    """How many words of each sentence are tagged rightly, and how many there are."""
    pairs = zip(ours, right, strict=True)
    return np.array([[sum(a == b for a, b in zip(*pair, strict=True)), len(pair[1])] for pair in pairs], np.float64)


def _share_of_counts(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 100 * counts[..., 0] / counts[..., 1]
