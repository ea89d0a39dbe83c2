"""Exact match and F1 of answers to questions, as SQuAD 1.1 and 2.0 define them (Rajpurkar et al. 2016, 2018).

Answers are compared without case, punctuation, articles and superfluous blanks. A question may have several right
answers, of which the best counts. One without any is answered rightly by saying nothing.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from depthwise.errors import InputError

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class AnswerScores:
    """Means over all questions, 0 to 100, and over those that have an answer and those that have none, if any do."""

    exact: float
    f1: float
    answerable_exact: float | None
    answerable_f1: float | None
    unanswerable_exact: float | None
    num_answerable: int
    num_unanswerable: int


@dataclass(frozen=True)
class BestThreshold:
    """The threshold with the highest mean score, and that mean, 0 to 100."""

    threshold: float
    score: float


def squad_scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> AnswerScores:
    """Scores of a corpus: a prediction for every question, empty for no answer, and the answers that are right."""
    values = squad_values(predictions, answers)
    answerable = np.array([len(given) > 0 for given in answers])

    def mean(column: int, of: NDArray[np.bool_]) -> float | None:
        return 100 * float(values[of, column].mean()) if of.any() else None

    exact, f1 = (100 * float(values[:, column].mean()) for column in (0, 1))
    num = int(answerable.sum())
    return AnswerScores(
        exact, f1, mean(0, answerable), mean(1, answerable), mean(0, ~answerable), num, len(answers) - num
    )


def squad_values(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Exact match and F1 of each question, 0 to 1: one row each. Columns go into ``compare_means``."""
    if isinstance(predictions, str) or any(isinstance(given, str) for given in answers):
        raise InputError("predictions are a list of texts and answers a list of lists; put single texts into a list")
    if len(predictions) != len(answers):
        raise InputError(f"{len(predictions)} predictions but answers to {len(answers)} questions")
    if not len(predictions):
        raise InputError("there are no questions to score")
    rows = []
    for predicted, given in zip(predictions, answers, strict=True):
        right = _right(given) or [""]
        rows.append(
            [max(exact_match(predicted, one) for one in right), max(answer_f1(predicted, one) for one in right)]
        )
    return np.array(rows, np.float64)


def exact_match(prediction: str, answer: str) -> float:
    """1 where both are the same but for case, punctuation, articles and blanks, else 0."""
    return float(normalized(prediction) == normalized(answer))


def answer_f1(prediction: str, answer: str) -> float:
    """Harmonic mean of precision and recall of words. Where either has none, 1 if both have none, else 0."""
    predicted, right = normalized(prediction).split(), normalized(answer).split()
    if not predicted or not right:
        return float(predicted == right)
    common = (Counter(predicted) & Counter(right)).total()
    return 2 * common / (len(predicted) + len(right))


def normalized(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, words apart by single blanks."""
    without_punctuation = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def best_null_threshold(null_margins: ArrayLike, values: ArrayLike, is_answerable: ArrayLike) -> BestThreshold:
    """The threshold on ``null score − best score`` above which to say nothing, chosen so that the mean is highest.

    ``values`` are exact match or F1 of each question where all are answered; saying nothing scores 1 where there is no
    answer and 0 where there is one. Choose it on validation data. Of several that are as good, the least.
    """
    margins, scores = np.asarray(null_margins, np.float64), np.asarray(values, np.float64)
    answerable = np.asarray(is_answerable, bool)
    if not (margins.shape == scores.shape == answerable.shape and margins.ndim == 1 and len(margins)):
        raise InputError(
            f"one margin, value and truth per question are needed, not shapes {margins.shape}, {scores.shape} and "
            f"{answerable.shape}"
        )
    if np.isnan(margins).any() or not np.isfinite(scores).all():
        raise InputError("margins or values hold NaN; look at the scores of the model")
    order = np.argsort(margins, kind="stable")
    gains = (scores - ~answerable)[order]
    totals = (~answerable).sum() + np.concatenate([[0.0], np.cumsum(gains)])
    ordered = margins[order]
    # the first k questions can be answered and the others not only where a threshold lies between them
    possible = np.concatenate([[True], ordered[1:] > ordered[:-1], [True]])
    best = int(np.argmax(np.where(possible, totals, -np.inf)))
    return BestThreshold(_between(ordered, best), 100 * float(totals[best]) / len(margins))


def _between(ordered: NDArray[np.float64], num_answered: int) -> float:
    """A threshold that the first margins do not exceed and the others do."""
    if num_answered == 0:
        return float(np.nextafter(ordered[0], -np.inf))
    return float(ordered[num_answered - 1])


def _right(answers: Sequence[str]) -> list[str]:
    """Answers that something is left of after normalising, as the official evaluation counts them."""
    return [answer for answer in answers if normalized(answer)]
