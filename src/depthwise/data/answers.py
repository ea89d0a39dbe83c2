"""From scores of windows to one answer per question.

A span of tokens scores start[i] + end[j]. All spans of all windows of a question compete, with at most
``max_answer_tokens`` tokens each, and the best is compared with the null score start[null] + end[null] (Devlin et al.
2019, section 4.3), of which the least over the windows counts: no answer means that every window says so. The search
is exact, not over the best starts and ends only.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from depthwise.data.answer_windows import AnswerWindow
from depthwise.data.squad import Question
from depthwise.errors import ConfigError, InputError, Problem

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AnswerOptions:
    """Which spans are answers."""

    max_answer_tokens: int = 30
    num_best: int = 1
    """How many spans of a question are kept, the best first."""
    null_threshold: float | None = 0.0
    """There is no answer where null score minus best score exceeds this; ``None`` always answers (SQuAD 1.1)."""

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"{getattr(self, name)} leaves no answer; give at least 1")
            for name in ("max_answer_tokens", "num_best")
            if getattr(self, name) < 1
        ]
        if problems:
            raise ConfigError("answers", problems)


@dataclass(frozen=True, slots=True)
class Span:
    """A possible answer: ``context[start:end]``, without blanks at its sides."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is answered, empty where there is no answer, with the spans that competed and the score of null."""

    id: str
    text: str
    best: tuple[Span, ...]
    null_score: float

    @property
    def null_margin(self) -> float:
        """Null score minus the best span's; what the threshold is compared with."""
        return self.null_score - self.best[0].score if self.best else np.inf


def merged_answers(
    questions: Sequence[Question],
    windows: Iterable[AnswerWindow],
    starts: Iterable[npt.ArrayLike],
    ends: Iterable[npt.ArrayLike],
    options: AnswerOptions,
) -> list[Prediction]:
    """One prediction per question, in their order, from windows in order with their scores, padded or not.

    A question without a window, which the tokenizer made nothing of, has no answer.
    """
    by_question: dict[int, Prediction] = {}
    scored = zip(windows, starts, ends, strict=True)
    for number, group in groupby(scored, key=lambda item: item[0].question):
        if number in by_question:
            raise InputError(f"the windows of question {number} do not follow each other; put them in order")
        members = [(window, _row(start, window), _row(end, window)) for window, start, end in group]
        by_question[number] = predicted_answer(questions[number], members, options)
    return [
        by_question.get(number) or Prediction(question.id, "", (), np.inf) for number, question in enumerate(questions)
    ]


def predicted_answer(
    question: Question, members: Sequence[tuple[AnswerWindow, Scores, Scores]], options: AnswerOptions
) -> Prediction:
    """The prediction for one question from its windows, each with the scores of starts and of ends."""
    null_score = min(float(start[window.null] + end[window.null]) for window, start, end in members)
    found = [span for member in members for span in _best_spans(question.context, *member, options)]
    by_place: dict[tuple[int, int], Span] = {}
    for span in sorted(found, key=lambda span: (-span.score, span.start, span.end)):
        by_place.setdefault((span.start, span.end), span)
    best = tuple(by_place.values())[: options.num_best]
    silent = not best or (options.null_threshold is not None and null_score - best[0].score > options.null_threshold)
    return Prediction(question.id, "" if silent else best[0].text, best, null_score)


def _best_spans(
    context: str, window: AnswerWindow, starts: Scores, ends: Scores, options: AnswerOptions
) -> Iterator[Span]:
    """The best spans of a window that differ in their characters."""
    num_tokens = len(window.offsets)
    widest = min(options.max_answer_tokens, num_tokens)
    inside = slice(window.first, window.first + num_tokens)
    ends_beyond = np.concatenate([ends[inside], np.full(widest - 1, -np.inf)])
    scores = starts[inside, None] + np.lib.stride_tricks.sliding_window_view(ends_beyond, widest)
    seen: set[tuple[int, int]] = set()
    for flat in _from_the_best(scores.ravel()):
        first, more = divmod(flat, widest)
        if scores[first, more] == -np.inf:
            return
        start, end = int(window.offsets[first, 0]), int(window.offsets[first + more, 1])
        start += len(context[start:end]) - len(context[start:end].lstrip())
        text = context[start:end].strip()
        place = start, start + len(text)
        if text and place not in seen:
            seen.add(place)
            yield Span(text, *place, float(scores[first, more]))
            if len(seen) == options.num_best:
                return


def _from_the_best(scores: npt.NDArray[np.float64]) -> Iterator[int]:
    """Places of the highest scores first, of equal ones the earlier first. The rest is sorted only if it is wanted."""
    yield int(np.argmax(scores))
    yield from np.argsort(-scores, kind="stable")[1:].tolist()


def _row(scores: npt.ArrayLike, window: AnswerWindow) -> Scores:
    row = np.asarray(scores, np.float64)
    if row.ndim != 1 or len(row) < len(window.ids):
        raise InputError(
            f"a window of {len(window.ids)} tokens needs as many scores, not an array of shape {row.shape}"
        )
    if np.isnan(row[: len(window.ids)]).any():
        raise InputError(f"the scores of question {window.question} hold NaN; look at the training of the model")
    return row
