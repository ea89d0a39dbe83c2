"""Scores of classifiers and regressors: by hand, against formulas written out, and where formulas break down."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthwise.errors import InputError
from depthwise.metrics import accuracy, f1_binary, f1_macro, matthews, pearson, spearman

PREDICTED = [1, 1, 0, 0, 1, 0, 1, 0]
RIGHT = [1, 0, 0, 1, 1, 0, 1, 1]
TP, FP, FN, TN = 3, 1, 2, 2
ALL: list[Callable[..., float]] = [accuracy, f1_binary, f1_macro, matthews, pearson, spearman]
OF_LABELS = ALL[:4]

labels = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)


def test_two_labels_by_hand() -> None:
    assert accuracy(PREDICTED, RIGHT) == 5 / 8
    precision, recall = TP / (TP + FP), TP / (TP + FN)
    positive = 2 * precision * recall / (precision + recall)
    assert f1_binary(PREDICTED, RIGHT) == pytest.approx(positive)
    precision, recall = TN / (TN + FN), TN / (TN + FP)
    negative = 2 * precision * recall / (precision + recall)
    assert f1_binary(PREDICTED, RIGHT, positive=0) == pytest.approx(negative)
    assert f1_macro(PREDICTED, RIGHT) == pytest.approx((positive + negative) / 2)
    spread = math.sqrt((TP + FP) * (TP + FN) * (TN + FP) * (TN + FN))
    assert matthews(PREDICTED, RIGHT) == pytest.approx((TP * TN - FP * FN) / spread)


def test_labels_may_be_text() -> None:
    names = np.array(["no", "yes"])
    predicted, right = names[PREDICTED].tolist(), names[RIGHT].tolist()
    assert accuracy(predicted, right) == accuracy(PREDICTED, RIGHT)
    assert f1_binary(predicted, right, positive="yes") == f1_binary(PREDICTED, RIGHT)
    assert f1_macro(predicted, right) == f1_macro(PREDICTED, RIGHT)
    assert matthews(predicted, right) == matthews(PREDICTED, RIGHT)


def test_macro_counts_labels_that_occur_on_either_side() -> None:
    """Labels 0, 1 and 2 have F1 1/2, 0 and 0."""
    assert f1_macro([0, 0, 1], [0, 2, 0]) == pytest.approx(0.5 / 3)


@given(labels)
def test_matthews_is_the_correlation_of_indicators(pairs: list[tuple[int, int]]) -> None:
    """cov(X, Y) / √(cov(X, X)·cov(Y, Y)) over one-hot rows, which is how Gorodkin defines it."""
    predicted, right = (np.array(side) for side in zip(*pairs, strict=True))
    x, y = (np.eye(4)[side] - np.eye(4)[side].mean(axis=0) for side in (predicted, right))
    spread = math.sqrt((x * x).sum() * (y * y).sum())
    expected = (x * y).sum() / spread if spread > 1e-9 else 0.0
    assert matthews(predicted, right) == pytest.approx(expected, abs=1e-12)


def test_degenerate_labels_have_defined_scores() -> None:
    assert f1_binary([0, 0], [0, 0]) == 0
    assert f1_binary([0, 0], [1, 1]) == 0
    assert f1_macro([2, 2], [2, 2]) == 1
    assert matthews([1, 1, 1], [1, 0, 1]) == 0
    assert matthews([1, 0, 1], [1, 1, 1]) == 0
    assert matthews([0, 1], [0, 1]) == 1
    assert matthews([1, 0], [0, 1]) == -1


def test_pearson_by_hand() -> None:
    """Centred, x is −4/3, −1/3, 5/3 and y is −1, 1, 0: their products sum to 1, their squares to 14/3 and 2."""
    assert pearson([1, 2, 4], [1, 3, 2]) == pytest.approx(1 / math.sqrt(14 / 3 * 2))


def test_spearman_shares_ranks_among_equals() -> None:
    """Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4."""
    assert spearman([0, 5, 5, 9], [10, 20, 30, 40]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert spearman([1, 10, 100, 1000], [1, 2, 3, 4]) == pytest.approx(1)
    assert spearman([1, 10, 100, 1000], [4, 3, 2, 1]) == pytest.approx(-1)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(0, 5)), min_size=3, max_size=40))
def test_correlations_against_their_definitions(pairs: list[tuple[float, int]]) -> None:
    x, y = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    x = np.round(x, 1)
    if len(set(x)) < 2 or len(set(y)) < 2:
        return
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)
    ranks = [[(side < value).sum() + ((side == value).sum() + 1) / 2 for value in side] for side in (x, y)]
    assert spearman(x, y) == pytest.approx(np.corrcoef(ranks)[0, 1], abs=1e-9)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1.7e308])
def test_pearson_at_any_magnitude(scale: float) -> None:
    x, y = np.array([0.1, 0.9, 0.4]), np.array([0.2, 0.5, 0.9])
    assert pearson(x * scale, y) == pytest.approx(pearson(x, y), rel=1e-9)
    assert pearson(x, y * scale) == pytest.approx(pearson(x, y), rel=1e-9)


def test_constant_predictions_correlate_with_nothing() -> None:
    for correlation in (pearson, spearman):
        assert correlation([0.1, 0.1, 0.1], [1, 2, 3]) == 0
        assert correlation([0.0, 0.0, 0.0], [1, 2, 3]) == 0


@pytest.mark.parametrize("correlation", [pearson, spearman])
@pytest.mark.parametrize(
    ("predicted", "right", "message"),
    [
        ([1, 2], [3, 3], "^all labels are the same"),
        ([1], [3], "evaluate on labels that differ$"),
        ([1, math.nan], [1, 2], "^predictions hold nan at index 1; correlations need finite numbers$"),
        ([1, 2], [math.inf, 2], "^labels hold inf at index 0"),
    ],
)
def test_bad_numbers(
    correlation: Callable[..., float], predicted: list[float], right: list[float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        correlation(predicted, right)


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize(
    ("predicted", "right", "message"),
    [
        ([], [], "^there are no examples to score$"),
        ([1], [1, 0], "^1 predictions but 2 labels$"),
        ([[1, 0]], [[1, 0]], r"their shapes are \(1, 2\) and \(1, 2\)$"),
    ],
)
def test_bad_lengths(metric: Callable[..., float], predicted: list[int], right: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        metric(predicted, right)


@pytest.mark.parametrize("metric", OF_LABELS)
def test_text_against_numbers(metric: Callable[..., float]) -> None:
    with pytest.raises(InputError, match=r"^predictions and labels are of different kinds, text and numbers"):
        metric(["1", "0"], [1, 0])
