"""Question answering: a question and a context in, the part of the context that answers it, or nothing, out."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from depthwise.config import Recipe
from depthwise.data import (
    AnswerCollator,
    AnswerOptions,
    AnswerWindow,
    Corpus,
    Example,
    JoinedCorpus,
    LineReport,
    LineRules,
    Question,
    Row,
    Rows,
    SquadJson,
    Tokenizers,
    WindowOptions,
    merged_answers,
    question_windows,
)
from depthwise.data.answers import Prediction as Answered
from depthwise.data.progress import shown
from depthwise.data.words import Spans, spans_of, words_of
from depthwise.errors import ConfigError, DataError, InputError, Problem
from depthwise.losses import IGNORED, token_cross_entropy
from depthwise.metrics import Comparison, Score, compare_means, squad_scores, squad_values
from depthwise.models.question_answering import DepthwiseForQuestionAnswering
from depthwise.shapes import Tensor
from depthwise.tasks.encoding import encoded, inputs_in, padded_sizes, placed, portions, shortened
from depthwise.tasks.sources import questions
from depthwise.tasks.values import Losses, Prediction
from depthwise.tasks.word_depths import Document, WordDepthTask

INSIDE, OUTSIDE = "answer", "other"
"""What words of a context are to the depths of words."""
MAX_TOKENS = 384
"""Of a window, unless the recipe or the model says otherwise (Devlin et al. 2019)."""
OF_ALL = ("f1", "exact")
OF_SOME = ("answerable_f1", "answerable_exact", "unanswerable_exact")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRow(Row):
    """A question with the windows on its context; none where the tokenizer makes nothing of either."""

    question: Question
    windows: tuple[AnswerWindow, ...]


class QuestionAnswering(WordDepthTask):
    """Cross-entropy of the first and of the last token of the answer, in windows on the context; exact match and F1.

    All windows of a question compete. Where questions may have no answer, none is given if the score of that exceeds
    the best answer's by more than ``generation.null_threshold``, which ``depthwise tune`` chooses on validation data.
    """

    kind = "question_answering"
    item = "windows"
    model_class = DepthwiseForQuestionAnswering
    metric = "f1"
    too_long = "split"
    has_lines = False
    num_inputs = 2
    has_probabilities = False
    why_no_probability = "an answer that several windows compete for has no probability"
    searches = True

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers) -> None:
        super().__init__(recipe, tokenizers)
        self._unanswerable = recipe.data.unanswerable
        problems = []
        if recipe.training.label_smoothing:
            problems.append(Problem("training.label_smoothing", "has no part in question answering; leave it out"))
        if recipe.data.too_long not in (None, "split"):
            problems.append(Problem("data.too_long", "long contexts are split into windows; leave it out"))
        if problems:
            raise ConfigError(f"task {self.kind}", problems)

    @property
    def unanswerable(self) -> bool:
        """Whether there may be no answer: as the recipe says, or as the training data has it; else yes."""
        if self._unanswerable is None:
            patient = LineReport(LineRules("skip", self.recipe.data.max_chars))
            has_training = self.recipe.data.train is not None
            found = self._questions("train", patient) if has_training else ()
            self._unanswerable = not has_training or any(not question.answers for question in found)
        return self._unanswerable

    # Data

    def corpus(self, split: str) -> JoinedCorpus[SquadJson]:
        return questions(self.recipe.data, self.check_split(split))

    def _questions(self, split: str, report: LineReport) -> Iterator[Question]:
        for part in self.corpus(split).parts:
            yield from part.questions(report)

    def _tokenizers_of(self, corpus: Corpus) -> Sequence[PreTrainedTokenizerBase]:
        return [self.tokenizers.source] * 2

    def examples(self, split: str) -> Rows[AnswerWindow]:
        self.prepare_words(split)
        corpus, report = self.corpus(split), LineReport(self.rules)
        found = shown(self._questions(split, report), f"tokenising {corpus.name}", corpus.num_lines())
        rows = question_windows(found, self.tokenizers.source, self.window_options, report, marks=self.marks)
        if not rows:
            raise DataError(f"{corpus.name}: no question can be used; {report.summary()}")
        return Rows(rows, report)

    @property
    def window_options(self) -> WindowOptions:
        data = self.recipe.data
        wanted = data.max_tokens or MAX_TOKENS
        return WindowOptions(min(wanted, self.max_tokens or wanted), data.stride, data.max_question_tokens)

    @property
    def max_tokens(self) -> int | None:
        assert self.options.encoder is not None
        return self.options.encoder.max_positions

    def resolved(self) -> Recipe:
        recipe = super().resolved()
        return replace(recipe, data=replace(recipe.data, unanswerable=self.unanswerable))

    # Learning

    def collate(self, rows: Sequence[AnswerWindow]) -> dict[str, Tensor]:  # type: ignore[override]
        types = self.options.token_types > 1
        batch = AnswerCollator(self.tokenizers.source.pad_token_id, token_types=types)(rows)
        return self.with_depths(batch, (row.marks for row in rows))

    def num_word_documents(self) -> int | None:
        return None  # words of contexts, which nobody has counted

    def word_documents(self, report: LineReport, form: str) -> Iterator[Document]:
        """Every word of a context, and whether it is part of the answer."""
        for question in self._questions("train", report):
            answer = question.answers[0] if question.answers else None
            inside = slice(0, 0) if answer is None else slice(answer.start, answer.start + len(answer.text))
            parts = (question.context[: inside.start], question.context[inside], question.context[inside.stop :])
            for part, label in zip(parts, (OUTSIDE, INSIDE, OUTSIDE), strict=True):
                yield from (((word,), label) for word in words_of(part, form))

    def num_word_texts(self, split: str) -> int | None:
        return None

    def word_texts(self, split: str, report: LineReport, form: str) -> Iterator[tuple[str, Spans]]:
        """Questions and contexts, each by itself."""
        context = None
        for question in self._questions(split, report):
            yield question.question, spans_of(question.question, form)
            if question.context != context:  # questions about the same paragraph follow each other
                context = question.context
                yield context, spans_of(context, form)

    @property
    def fillers(self) -> dict[str, int]:
        """Labels are two places of a window, not one for each token."""
        return {name: filler for name, filler in super().fillers.items() if name != "labels"}

    def num_items(self, batch: Mapping[str, Tensor]) -> int:
        return int((batch["labels"][:, 0] != IGNORED).sum())

    def losses(self, model: PreTrainedModel, batch: Mapping[str, Tensor], num_items: Tensor | int | None) -> Losses:
        """The mean of the losses of beginning and end, summed over windows."""
        labels = batch["labels"]
        pointers = None if num_items is None else 2 * num_items
        if (taught := self.taught(model, {**inputs_in(batch), "labels": labels}, pointers)) is not None:
            return taught
        logits = model(**inputs_in(batch)).logits
        loss = token_cross_entropy(logits.transpose(1, 2), labels, pointers)
        correct = (logits.detach().argmax(1) == labels).all(1).sum().float()
        return Losses(loss, {"correct": correct})

    def validation_metrics(self, totals: Mapping[str, float], num_items: float) -> dict[str, float]:
        found = {"loss": totals["loss"] / num_items, "window_accuracy": 100 * totals["correct"] / num_items}
        return {**found, **self.exit_metrics(totals, num_items)}

    # Predicting

    @property
    def answer_options(self) -> AnswerOptions:
        search = self.recipe.generation
        threshold = search.null_threshold if self.unanswerable else None
        return AnswerOptions(search.max_answer_tokens, null_threshold=threshold)

    def whole_rows(self, texts: Sequence[tuple[str, ...]]) -> list[Row]:
        ids_asked = encoded(self.tokenizers.source, [question for question, _ in texts])
        found = [Question(str(index), asked, given, (), "", index + 1) for index, (asked, given) in enumerate(texts)]
        options, report = self.window_options, LineReport()
        windows = question_windows(found, self.tokenizers.source, options, report, labelled=False, marks=self.marks)
        of_question = {
            number: tuple(replace(window, question=0) for window in group)
            for number, group in groupby(windows, key=lambda window: window.question)
        }
        return [
            QuestionRow(index, (ids,), None, question=question, windows=of_question.get(index, ()))
            for index, (ids, question) in enumerate(zip(ids_asked, found, strict=True))
        ]

    def cut(self, row: Row, most: int | None = None) -> Row:
        """The row itself, with what its windows have kept of a long question; contexts are never cut."""
        (limit,) = self.text_limits
        if limit is None or len(row.texts[0]) <= limit:
            return row
        return replace(row, texts=(shortened(row.texts[0], limit),))

    @property
    def text_limits(self) -> tuple[int | None, ...]:
        return (self.window_options.max_question_tokens + self.tokenizers.source.num_special_tokens_to_add(),)

    def row_lengths(self, rows: Sequence[Row]) -> npt.NDArray[np.int32]:
        """No more than a batch holds: what exceeds that goes through the model in portions."""
        windows = [row.windows for row in rows if isinstance(row, QuestionRow)]
        return padded_sizes(windows, self.recipe.evaluation.batch_tokens)

    def predictions(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[Prediction]:
        answered, depths = self._answered(model, rows, self.answer_options)
        return [Prediction(answer.text, None, ran) for answer, ran in zip(answered, depths, strict=True)]

    def answers(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[Answered]:
        """The best answer to each question, whatever the threshold, with its margin to the score of none."""
        options = replace(self.answer_options, null_threshold=None)
        return self._answered(model, rows, options)[0]

    @torch.no_grad()
    def _answered(
        self, model: PreTrainedModel, rows: Sequence[Row], options: AnswerOptions
    ) -> tuple[list[Answered], list[tuple[int, ...]]]:
        """The answer to each question, and how deep the tokens of its windows ran."""
        asked = [row for row in rows if isinstance(row, QuestionRow)]
        windows = [window for row in asked for window in row.windows]
        scores: list[npt.NDArray[np.float64]] = []
        depths: list[list[int]] = []
        for portion in portions(windows, self.recipe.evaluation.batch_tokens):
            batch = placed(self.collate(portion), model.device)
            output = model(**inputs_in(batch))
            scores += list(output.logits.double().cpu().numpy())
            depths += output.depths.tolist()
        answered, ran, begin = [], [], 0
        for row in asked:
            here = slice(begin, begin + len(row.windows))
            starts, ends = ([score[:, side] for score in scores[here]] for side in (0, 1))
            answered += merged_answers([row.question], row.windows, starts, ends, options)
            ran.append(tuple(depth for window in depths[here] for depth in window if depth))
            begin += len(row.windows)
        return answered, ran

    def log_probabilities(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[float]:
        raise InputError(f"{self.why_no_probability}; leave --score out")

    def scored_rows(self, texts: Sequence[tuple[str, ...]], outputs: Sequence[str]) -> list[Row]:
        raise InputError(f"{self.why_no_probability}; leave --score out")

    # Scoring

    def default_metrics(self) -> tuple[str, ...]:
        return OF_ALL

    def known_metrics(self) -> tuple[str, ...]:
        return (*OF_ALL, *OF_SOME)

    def score(self, predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, Score]:
        found = squad_scores(predictions, right_answers(examples))
        how = f"questions:{len(examples)}|unanswerable:{found.num_unanswerable}|normalized:squad|scale:100"
        values: dict[str, Any] = {name: getattr(found, name) for name in self.metrics}
        return {name: Score(name, float("nan") if value is None else value, how) for name, value in values.items()}

    @property
    def compared_by(self) -> str:
        return next((name for name in self.metrics if name in OF_ALL), "f1")

    def compare(self, ours: Sequence[str], theirs: Sequence[str], examples: Sequence[Example]) -> Comparison:
        answers, column = right_answers(examples), ("exact", "f1").index(self.compared_by)
        return compare_means(*(100 * squad_values(side, answers)[:, column] for side in (ours, theirs)))


def right_answers(examples: Sequence[Example]) -> list[list[str]]:
    """What is right, from the labels that the reader of SQuAD gives."""
    return [json.loads(example.label or "[]") for example in examples]
