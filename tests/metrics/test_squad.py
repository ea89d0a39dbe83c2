"""Exact match and F1 of answers by hand, and the best threshold against a search through all of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthwise.errors import InputError
from depthwise.metrics import compare_means
from depthwise.metrics.squad import answer_f1, best_null_threshold, exact_match, normalized, squad_scores, squad_values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Theatre, an Arena!", "theatre arena"),
        ("a.b. the-end", "ab theend"),
        ("U.S.A.", "usa"),
        ("an a the", ""),
        ("the’re “quoted”", "’re “quoted”"),
        ("Ätna\u00a0the\tBerg\n", "ätna berg"),
    ],
)
def test_normalisation(text: str, expected: str) -> None:
    """Lower case, ASCII punctuation out, then articles as whole words, then blanks."""
    assert normalized(text) == expected


def test_one_answer() -> None:
    assert exact_match("The Normans.", "normans") == 1
    assert exact_match("Norman", "Normans") == 0
    assert answer_f1("the 10th century", "10th and 11th century") == pytest.approx(2 * 2 / (2 + 4))
    assert answer_f1("so so so", "so so what") == pytest.approx(2 / 3)
    assert answer_f1("x", "y") == 0
    assert answer_f1("", "") == answer_f1("the", "") == 1
    assert answer_f1("", "x") == answer_f1("x", "") == 0


def test_a_corpus() -> None:
    predictions = ["Normandy", "in France", "", "Rollo", ""]
    answers = [["the Normandy", "Paris"], ["France", "Gaul"], [], [], ["Rollo"]]
    assert squad_values(predictions, answers).tolist() == [[1, 1], [0, pytest.approx(2 / 3)], [1, 1], [0, 0], [0, 0]]
    scores = squad_scores(predictions, answers)
    assert (scores.exact, scores.f1) == (40, pytest.approx(100 * (2 + 2 / 3) / 5))
    assert scores.answerable_exact == pytest.approx(100 / 3)
    assert scores.answerable_f1 == pytest.approx(100 * (1 + 2 / 3) / 3)
    assert (scores.unanswerable_exact, scores.num_answerable, scores.num_unanswerable) == (50, 3, 2)


def test_without_unanswerable_questions() -> None:
    scores = squad_scores(["x"], [["x"]])
    assert (scores.exact, scores.answerable_f1, scores.unanswerable_exact) == (100, 100, None)
    scores = squad_scores(["x"], [[]])
    assert (scores.exact, scores.answerable_exact, scores.answerable_f1, scores.unanswerable_exact) == (
        0,
        None,
        None,
        0,
    )


def test_answers_that_nothing_is_left_of() -> None:
    """They count as none, where another is left, and as the empty answer where none is."""
    assert squad_values([""], [["the", "x"]]).tolist() == [[0, 0]]
    assert squad_values(["", "a"], [["The"], ["the"]]).tolist() == [[1, 1], [1, 1]]


def test_two_systems_compare() -> None:
    answers = [["x"]] * 60
    ours, theirs = ["x"] * 60, ["x"] * 30 + ["y"] * 30
    found = compare_means(squad_values(ours, answers)[:, 1], squad_values(theirs, answers)[:, 1])
    assert found.difference == 0.5
    assert found.low > 0.3


@given(
    st.lists(
        st.tuples(st.integers(-3, 3) | st.just(np.inf), st.sampled_from([0.0, 0.5, 1.0]), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_the_best_threshold(cases: list[tuple[float, float, bool]]) -> None:
    """Against every threshold that makes a difference. Wrongly answered questions score 0."""
    margins = np.array([margin for margin, _, _ in cases], float)
    answerable = np.array([right for _, _, right in cases])
    values = np.where(answerable, [value for _, value, _ in cases], 0.0)

    def score(threshold: float) -> float:
        return float(np.mean(np.where(margins > threshold, ~answerable, values))) * 100

    found = best_null_threshold(margins, values, answerable)
    assert found.score == pytest.approx(score(found.threshold))
    candidates = [-4.0, *(place + half for place in range(-3, 4) for half in (0, 0.5)), np.inf]
    assert found.score == pytest.approx(max(score(candidate) for candidate in candidates))


def test_errors() -> None:
    with pytest.raises(InputError, match="2 predictions but answers to 1 questions"):
        squad_values(["a", "b"], [["a"]])
    with pytest.raises(InputError, match="there are no questions to score"):
        squad_values([], [])
    with pytest.raises(InputError, match="put single texts into a list"):
        squad_values(["a"], ["a"])
    with pytest.raises(InputError, match="put single texts into a list"):
        squad_values("a", [["a"]])
    with pytest.raises(InputError, match=r"not shapes \(2,\), \(1,\) and \(1,\)"):
        best_null_threshold([1, 2], [1], [True])
    with pytest.raises(InputError, match="hold NaN"):
        best_null_threshold([np.nan], [1], [True])
