"""Measures of certainty by hand, and thresholds over time."""

import math

import pytest
import torch

from depthwise.config.depth import MEASURES
from depthwise.depth.confidence import agreement, decayed_threshold, saturation, score_confidence
from depthwise.errors import InputError

PROBABILITIES = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
ENTROPY = -(0.5 * math.log(0.5) + 0.3 * math.log(0.3) + 0.2 * math.log(0.2))


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("max_probability", [0.5, 1.0, 1 / 3]),
        ("margin", [0.2, 1.0, 0.0]),
        ("entropy", [-ENTROPY, 0.0, -math.log(3)]),
        ("normalized_entropy", [1 - ENTROPY / math.log(3), 1.0, 0.0]),
    ],
)
def test_by_hand(measure: str, expected: list[float]) -> None:
    assert score_confidence(measure, PROBABILITIES.log()).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("measure", MEASURES[:-1])
def test_certainty_rises_with_every_measure(measure: str) -> None:
    logits = torch.tensor([3.0, 1.0, 0.0, -1.0], dtype=torch.float64)
    found = [float(score_confidence(measure, (logits * sharpness).log_softmax(-1))) for sharpness in (0, 0.5, 1, 2, 4)]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


def test_a_vocabulary_of_one() -> None:
    assert [float(score_confidence(measure, torch.zeros(1))) for measure in MEASURES[:-1]] == [1, 1, 0, 1]


def test_states_that_turn() -> None:
    before, after = torch.tensor([[1.0, 0.0]] * 3), torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert saturation(before, after).tolist() == [1, 0, -1]


def test_thresholds_over_time() -> None:
    steps = torch.tensor([0, 5, 10])
    code, paper = (decayed_threshold(0.8, steps, length=10, form=form) for form in ("code", "paper"))
    assert code.tolist() == pytest.approx([0.8, 0.72 + 0.08 * math.exp(-2), 0.72 + 0.08 * math.exp(-4)])
    assert paper.tolist() == pytest.approx([0.82, 0.72 + 0.1 * math.exp(-2), 0.72 + 0.1 * math.exp(-4)])
    assert decayed_threshold(1.0, steps, length=10, form="paper").max() == 1
    assert decayed_threshold(0.8, steps, length=10, rate=0.0).tolist() == pytest.approx([0.8] * 3)


def test_agreement_counts_and_begins_anew() -> None:
    count = torch.zeros(2, dtype=torch.long)
    seen = []
    for same in ([True, False], [True, True], [False, True]):
        count = agreement(count, torch.tensor(same))
        seen.append(count.tolist())
    assert seen == [[1, 0], [2, 1], [0, 2]]


def test_names_that_nobody_has() -> None:
    with pytest.raises(InputError, match='"certainty" is no measure of scores; choose among max_probability'):
        score_confidence("certainty", torch.zeros(2))
    with pytest.raises(InputError, match='the form of the decay is "book", but may be code or paper'):
        decayed_threshold(0.5, torch.tensor([0]), length=1, form="book")
