"""Scores of classifiers and of regressors, over one label or number per example.

Every function takes predictions first and what is right second. Where a formula would divide by zero its value is
defined here, so that an evaluation early in training gives a number and not NaN.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from depthwise.errors import InputError

Labels = Sequence[int] | Sequence[str] | NDArray[Any]


def accuracy(predictions: Labels, labels: Labels) -> float:
    """Share of predictions that are right, 0 to 1."""
    predicted, right = _paired_labels(predictions, labels)
    return float(np.mean(predicted == right))


def f1_binary(predictions: Labels, labels: Labels, *, positive: int | str = 1) -> float:
    """Harmonic mean of precision and recall of one label: 2·tp / (2·tp + fp + fn).

    0 where that label neither occurs nor is predicted.
    """
    predicted, right = _paired_labels(predictions, labels)
    return _f1(predicted == positive, right == positive)


def f1_macro(predictions: Labels, labels: Labels) -> float:
    """Mean of the F1 of every label that occurs or is predicted, each counting the same."""
    predicted, right = _paired_labels(predictions, labels)
    kinds = np.union1d(predicted, right)
    return float(np.mean([_f1(predicted == kind, right == kind) for kind in kinds]))


def matthews(predictions: Labels, labels: Labels) -> float:
    """Matthews' correlation coefficient, −1 to 1, for two or more labels (Gorodkin 2004).

    (c·s − Σₖ pₖ·tₖ) / √((s² − Σₖ pₖ²)(s² − Σₖ tₖ²)) with s examples, c of them right, label k predicted pₖ times and
    right tₖ times. For two labels that is (tp·tn − fp·fn) / √((tp+fp)(tp+fn)(tn+fp)(tn+fn)). 0 where all predictions,
    or all labels, are the same.
    """
    predicted, right = _paired_labels(predictions, labels)
    kinds = np.union1d(predicted, right)
    p = np.array([np.sum(predicted == kind) for kind in kinds], dtype=np.float64)
    t = np.array([np.sum(right == kind) for kind in kinds], dtype=np.float64)
    s, c = float(len(right)), float(np.sum(predicted == right))
    spread = (s * s - p @ p) * (s * s - t @ t)
    return float((c * s - p @ t) / np.sqrt(spread)) if spread > 0 else 0.0


def pearson(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Pearson's linear correlation, −1 to 1.

    0 where all predictions are the same: such a model says nothing about the labels. Labels that are all the same are
    an error of the data, since nothing could correlate with them.
    """
    return _correlation(*_paired_numbers(predictions, labels))


def spearman(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, where equal values share the mean of their ranks."""
    predicted, right = _paired_numbers(predictions, labels)
    return _correlation(_ranks(predicted), _ranks(right))


def _f1(predicted: NDArray[np.bool_], right: NDArray[np.bool_]) -> float:
    mentions = int(predicted.sum() + right.sum())  # 2·tp + fp + fn
    return 2.0 * int((predicted & right).sum()) / mentions if mentions else 0.0


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    if np.all(x == x[0]):
        return 0.0
    return float(np.clip(_standardized(x) @ _standardized(y), -1.0, 1.0))


def _standardized(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean 0 and length 1. Scaled down before anything is squared, so that no magnitude overflows or vanishes."""
    values = values / np.max(np.abs(values))
    centred = values - values.mean()
    return centred / np.linalg.norm(centred)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[where]


def _paired_labels(predictions: Labels, labels: Labels) -> tuple[NDArray[Any], NDArray[Any]]:
    predicted, right = np.asarray(predictions), np.asarray(labels)
    _check_lengths(predicted, right)
    if (predicted.dtype.kind == "U") != (right.dtype.kind == "U"):
        raise InputError("predictions and labels are of different kinds, text and numbers; give both as the same")
    return predicted, right


def _paired_numbers(predictions: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    predicted, right = (np.asarray(values, dtype=np.float64) for values in (predictions, labels))
    _check_lengths(predicted, right)
    for name, values in (("predictions", predicted), ("labels", right)):
        if not np.isfinite(values).all():
            index = int(np.argmin(np.isfinite(values)))
            raise InputError(f"{name} hold {values[index]} at index {index}; correlations need finite numbers")
    if np.all(right == right[0]):
        raise InputError("all labels are the same, so that no correlation is defined; evaluate on labels that differ")
    return predicted, right


def _check_lengths(predictions: NDArray[Any], labels: NDArray[Any]) -> None:
    if predictions.ndim != 1 or labels.ndim != 1:
        raise InputError(
            f"one prediction and one label per example are needed, but their shapes are {predictions.shape} and "
            f"{labels.shape}"
        )
    if len(predictions) != len(labels):
        raise InputError(f"{len(predictions)} predictions but {len(labels)} labels")
    if not len(labels):
        raise InputError("there are no examples to score")
