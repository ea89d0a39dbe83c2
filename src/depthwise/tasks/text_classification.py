"""Text classification: a text or a pair of texts in, a class or a number out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from depthwise.config import Recipe, WordDepthsConfig
from depthwise.data import (
    ClassificationCollator,
    Corpus,
    Example,
    PairForm,
    Row,
    StoreOptions,
    Tokenizers,
    TokenStore,
    pair_form,
)
from depthwise.errors import ConfigError, DataError, InputError, Problem
from depthwise.losses import IGNORED, classification_loss, label_smoothed_cross_entropy
from depthwise.metrics import (
    Comparison,
    Score,
    accuracy,
    compare_means,
    f1_binary,
    f1_macro,
    matthews,
    pearson,
    spearman,
)
from depthwise.models.sequence_classification import DepthwiseForSequenceClassification
from depthwise.shapes import Float, Tensor
from depthwise.tasks.encoding import encoded, inputs_in, marked_ids, placed
from depthwise.tasks.sources import labelled, num_texts
from depthwise.tasks.teaching import lesson_in, with_teacher
from depthwise.tasks.values import Losses, Prediction
from depthwise.tasks.word_depths import WordDepthTask

OF_CLASSES = ("accuracy", "f1", "f1_macro", "matthews")
OF_NUMBERS = ("pearson", "spearman", "squared_error")


class TextClassification(WordDepthTask):
    """Cross-entropy of classes, or squared error of numbers.

    Both texts of a pair stand behind each other, in the form of their tokenizer: each with its end of sequence, or
    ``[CLS] a [SEP] b [SEP]`` of BERT with the types 0 and 1.
    """

    kind = "text_classification"
    item = "examples"
    model_class = DepthwiseForSequenceClassification
    too_long = "cut"

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers, label_names: tuple[str, ...] | None = None) -> None:
        super().__init__(recipe, tokenizers)
        self._label_names = label_names

    @property
    def is_regression(self) -> bool:
        return self.recipe.data.labels == "number"

    @property
    def metric(self) -> str:  # type: ignore[override]
        return "loss" if self.is_regression else "accuracy"

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes in the order of their numbers: those that training saw."""
        if self._label_names is None:
            found = self.store("train").label_names
            assert found is not None
            if len(found) < 2:
                raise DataError(f'all training examples have the label "{found[0]}"; give data with at least two')
            self._label_names = found
        return self._label_names

    # Data

    def corpus(self, split: str) -> Corpus:
        corpus = labelled(self.recipe.data, self.check_split(split))
        if corpus.num_texts != self.num_inputs:
            raise DataError(
                f"{corpus.name} has {corpus.num_texts} texts on a line, but the model was made for {self.num_inputs}; "
                "give data of that form"
            )
        return corpus

    def _tokenizers_of(self, corpus: Corpus) -> Sequence[PreTrainedTokenizerBase]:
        return [self.tokenizers.source] * corpus.num_texts

    def store_options(self, split: str) -> StoreOptions:
        options = super().store_options(split)
        names = None if self.is_regression or split == "train" else self.label_names
        (most,) = options.limits(1)
        labels = self.recipe.data.labels
        return replace(options, max_tokens=self._share(most), label_kind=labels, label_names=names)

    def lengths(self, examples: TokenStore) -> npt.NDArray[np.int32]:
        return self._joined_lengths(examples.lengths())

    @property
    def max_tokens(self) -> int | None:
        assert self.options.encoder is not None
        return self.options.encoder.max_positions

    def check_labels_tell(self, options: WordDepthsConfig) -> None:
        if self.is_regression:
            message = f"{options.estimator} needs classes, but data.labels is number; choose frequency or fixed"
            raise ConfigError("recipe", [Problem("model.word_depths.estimator", message)])

    # Model

    def config_options(self) -> dict[str, Any]:
        if self.is_regression:
            return {"num_labels": 1, "problem_type": "regression"}
        names = dict(enumerate(self.label_names))
        return {
            "id2label": names,
            "label2id": {name: number for number, name in names.items()},
            "problem_type": "single_label_classification",
        }

    # Learning

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        return self.with_depths(self._collator(rows), map(self._joined_marks, rows))

    def _joined_marks(self, row: Row) -> npt.NDArray[Any] | None:
        if row.marks is None or len(row.marks) == 1:
            return None if row.marks is None else row.marks[0]
        return np.concatenate(row.marks) if self.pair_form is None else self.pair_form.marked(*row.marks)

    @cached_property
    def pair_form(self) -> PairForm | None:
        """How the tokenizer puts two texts together, where there are two."""
        return pair_form(self.tokenizers.source) if self.num_inputs == 2 else None

    @cached_property
    def _collator(self) -> ClassificationCollator:
        types = self.num_inputs == 2 and self.options.token_types > 1
        return ClassificationCollator(self.tokenizers.source.pad_token_id, pair=self.pair_form, token_types=types)

    def _joined_lengths(self, lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        more = 0 if self.pair_form is None else self.pair_form.num_more
        return lengths.sum(axis=1, keepdims=True, dtype=np.int32) + np.int32(more)

    def _share(self, limit: int | None) -> int | None:
        """The most ids of one text: both texts of a pair share what there is room for."""
        if limit is None or self.pair_form is None:
            return limit
        return max(2, self.pair_form.room(limit))

    def num_items(self, batch: Mapping[str, Tensor]) -> int:
        labels = batch["labels"]
        return int((~labels.isnan() if labels.is_floating_point() else labels != IGNORED).sum())

    def losses(self, model: PreTrainedModel, batch: Mapping[str, Tensor], num_items: Tensor | int | None) -> Losses:
        labels = batch["labels"]
        if (taught := self.taught(model, lesson_in(batch), num_items)) is not None:
            return taught
        logits = model(**inputs_in(batch)).logits
        if self.is_regression:
            return Losses(classification_loss(logits, labels, "regression", num_items), {})
        training = self.recipe.training
        smoothed = label_smoothed_cross_entropy(
            logits, labels, training.label_smoothing, num_items, over_others=training.smoothing_over_others
        )
        loss = with_teacher(smoothed.loss, logits, batch, training, num_items)
        correct = (logits.detach().argmax(-1) == labels).sum().float()
        return Losses(loss, {"nll": smoothed.nll_sum, "correct": correct})

    def validation_metrics(self, totals: Mapping[str, float], num_items: float) -> dict[str, float]:
        found = {"loss": totals["loss"] / num_items}
        if not self.is_regression:
            found |= {"nll": totals["nll"] / num_items, "accuracy": 100 * totals["correct"] / num_items}
        return {**found, **self.exit_metrics(totals, num_items)}

    # Predicting

    @cached_property
    def num_inputs(self) -> int:
        data = self.recipe.data
        if data.num_texts is None and data.train:
            return num_texts(data, data.train)
        return data.num_texts or 1

    def resolved(self) -> Recipe:
        recipe = super().resolved()
        return replace(recipe, data=replace(recipe.data, num_texts=self.num_inputs))

    def whole_rows(self, texts: Sequence[tuple[str, ...]]) -> list[Row]:
        columns = list(zip(*texts, strict=True))
        if self.marks is None:
            sides = [encoded(self.tokenizers.source, side) for side in columns]
            return [Row(index, tuple(ids), None) for index, ids in enumerate(zip(*sides, strict=True))]
        marked = zip(*(marked_ids(self.tokenizers.source, side, self.marks) for side in columns), strict=True)
        return [
            Row(index, tuple(ids for ids, _ in row), None, marks=tuple(marks for _, marks in row))
            for index, row in enumerate(marked)
        ]

    @property
    def text_limits(self) -> tuple[int | None, ...]:
        return (self._share(self.max_tokens),) * self.num_inputs

    def row_lengths(self, rows: Sequence[Row]) -> npt.NDArray[np.int32]:
        return self._joined_lengths(super().row_lengths(rows))

    @property
    def has_probabilities(self) -> bool:
        return not self.is_regression

    def scored_rows(self, texts: Sequence[tuple[str, ...]], outputs: Sequence[str]) -> list[Row]:
        if not self.has_probabilities:
            raise InputError(f"{self.why_no_probability}; leave --score out")
        places = {name: number for number, name in enumerate(self.label_names)}
        for output in outputs:
            if output not in places:
                raise InputError(f'"{output}" is no label of this model, which knows {", ".join(places)}')
        labels = [places[output] for output in outputs]
        return [replace(row, label=label) for row, label in zip(self.whole_rows(texts), labels, strict=True)]

    @torch.no_grad()
    def predict(self, model: PreTrainedModel, batch: Mapping[str, Tensor]) -> list[Prediction]:
        output = model(**inputs_in(batch))
        depths = [tuple(depth for depth in row if depth) for row in output.depths.tolist()]
        return self.answers(output.logits, depths)

    def answers(self, logits: Float[Tensor, "B _labels"], depths: Sequence[tuple[int, ...]]) -> list[Prediction]:
        """What scores, or log-probabilities, of rows say whose tokens ran so deep."""
        logits = logits.float()
        if self.is_regression:
            return [
                Prediction(f"{value:.6g}", None, row) for value, row in zip(logits[:, 0].tolist(), depths, strict=True)
            ]
        best = logits.log_softmax(-1).max(-1)
        found = zip(best.indices.tolist(), best.values.tolist(), depths, strict=True)
        return [Prediction(self.label_names[place], score, row) for place, score, row in found]

    @torch.no_grad()
    def log_probabilities(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[float]:
        batch = placed(self.collate(rows), model.device)
        logits = model(**inputs_in(batch)).logits
        log_probs = logits.double().log_softmax(-1)
        found: list[float] = log_probs.gather(-1, batch["labels"].unsqueeze(-1)).squeeze(-1).tolist()
        return found

    # Scoring

    def default_metrics(self) -> tuple[str, ...]:
        return ("pearson", "spearman") if self.is_regression else ("accuracy", "f1_macro")

    def known_metrics(self) -> tuple[str, ...]:
        return OF_NUMBERS if self.is_regression else OF_CLASSES

    def check_examples(self, examples: Sequence[Example]) -> None:
        self.score([example.label or "" for example in examples], examples)

    def score(self, predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, Score]:
        if not self.is_regression:
            self._check_labels(examples)
        labels = [example.label or "" for example in examples]
        return {name: self._score(name, predictions, labels) for name in self.metrics}

    def _check_labels(self, examples: Sequence[Example]) -> None:
        for example in examples:
            if example.label not in self.label_names:
                raise DataError(
                    f'{example.file}:{example.line}: label "{example.label}" was never seen in training, which knows '
                    f"{', '.join(self.label_names)}; mend it, or train on data that has it"
                )

    def _score(self, name: str, predictions: Sequence[str], labels: Sequence[str]) -> Score:
        if self.is_regression:
            predicted, right = _numbers(predictions), _numbers(labels)
            if name == "squared_error":
                return Score("mean squared error", float(np.mean((predicted - right) ** 2)), f"n:{len(labels)}")
            function = {"pearson": pearson, "spearman": spearman}[name]
            return Score(name, 100 * function(predicted, right), f"n:{len(labels)}|scale:100")
        if name == "f1":
            return Score("F1", 100 * self._f1(predictions, labels), f"positive:{self.label_names[-1]}|scale:100")
        of_names = {"accuracy": accuracy, "f1_macro": f1_macro, "matthews": matthews}[name]
        return Score(name, 100 * of_names(list(predictions), list(labels)), f"n:{len(labels)}|scale:100")

    def _f1(self, predictions: Sequence[str], labels: Sequence[str]) -> float:
        if len(self.label_names) != 2:
            raise InputError(f"f1 is for two labels, and there are {len(self.label_names)}; take f1_macro")
        return f1_binary(list(predictions), list(labels), positive=self.label_names[-1])

    @property
    def compared_by(self) -> str:
        return "negative squared error" if self.is_regression else "accuracy"

    def compare(self, ours: Sequence[str], theirs: Sequence[str], examples: Sequence[Example]) -> Comparison:
        """By accuracy, or by the squared error of numbers (negative, so that more is better)."""
        labels = [example.label or "" for example in examples]
        if self.is_regression:
            right = _numbers(labels)
            return compare_means(*(-((_numbers(values) - right) ** 2) for values in (ours, theirs)))
        return compare_means(
            *(
                [100.0 * (value == label) for value, label in zip(values, labels, strict=True)]
                for values in (ours, theirs)
            )
        )


def _numbers(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    try:
        return np.array([float(text) for text in texts])
    except ValueError as error:
        raise InputError(f"predictions and labels must be numbers: {error}") from None
