"""Leaving where a model is sure enough."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from depthwise.config import ConfidenceConfig
from depthwise.config.depth import DECAYS, MEASURES
from depthwise.depth import ConfidenceThreshold, Context, Visit
from depthwise.errors import InputError

DepthsOf = Callable[..., torch.Tensor]
OF_SCORES = [measure for measure in MEASURES if measure != "saturation"]
# A row of three tokens: confident (by max_probability) at the first, the second and never below the last of 4 exits.
CONFIDENCES = torch.tensor([[0.9, 0.4, 0.3], [0.95, 0.8, 0.5], [0.99, 0.85, 0.6], [1.0, 0.9, 0.9]])


def policy_with(*threshold: float, **options: Any) -> ConfidenceThreshold:
    return ConfidenceThreshold(ConfidenceConfig(threshold=threshold, **options))


def certain(confidences: torch.Tensor, num_classes: int = 5) -> torch.Tensor:
    """Scores whose first guess has this probability; the others share the rest."""
    rest = ((1 - confidences) / (num_classes - 1)).unsqueeze(-1).expand(*confidences.shape, num_classes - 1)
    return torch.cat([confidences.unsqueeze(-1), rest], -1).log()


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        ((0.7,), [1, 2, 6]),
        ((0.8,), [1, 2, 6]),
        ((0.55,), [1, 2, 4]),
        ((0.0,), [1, 1, 1]),
        ((0.95, 0.9, 0.5), [2, 4, 4]),
        ((2.0, 2.0, 0.86), [4, 6, 6]),
    ],
)
def test_the_first_exit_that_is_sure_enough(
    depths_of: DepthsOf, threshold: tuple[float, ...], expected: list[int]
) -> None:
    scores = certain(CONFIDENCES.double().unsqueeze(1))
    hidden = torch.zeros(4, 1, 3, 8)
    assert depths_of(policy_with(*threshold), hidden, scores).tolist() == [expected]


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_by_its_definition(
    states: torch.Tensor, scores: torch.Tensor, depths_of: DepthsOf, measure: str
) -> None:
    if measure == "saturation":
        cosine = (states[1:] * states[:-1]).sum(-1) / (states[1:].norm(dim=-1) * states[:-1].norm(dim=-1))
        found = torch.cat([torch.full_like(cosine[:1], -9.0), cosine])
    else:
        probabilities = scores.exp()
        best = probabilities.sort(-1, descending=True).values
        entropy = -(probabilities * scores).sum(-1)
        found = {
            "max_probability": best[..., 0],
            "margin": best[..., 0] - best[..., 1],
            "entropy": -entropy,
            "normalized_entropy": 1 - entropy / math.log(7),
        }[measure]
    threshold = float(found[1].median())
    expected = torch.full((3, 5), 6)
    for index, depth in reversed(list(enumerate((1, 2, 4)))):
        expected = torch.where(found[index] > threshold - 1e-9, depth, expected)
    policy = policy_with(threshold - 1e-9, measure=measure)
    assert torch.equal(depths_of(policy, states, None if measure == "saturation" else scores), expected)
    assert len(expected.unique()) > 2


def test_saturation_cannot_leave_at_the_first_exit(depths_of: DepthsOf) -> None:
    same = torch.ones(4, 2, 3, 8)
    assert depths_of(policy_with(-1.0, measure="saturation"), same).eq(2).all()


@pytest.mark.parametrize("measure", MEASURES)
def test_nobody_leaves_above_one_and_nobody_looks(states: torch.Tensor, depths_of: DepthsOf, measure: str) -> None:
    for threshold in (1.0000001, 2.0, math.inf):
        assert depths_of(policy_with(threshold, measure=measure), states.new_ones(states.shape)).eq(6).all()


def test_scores_are_looked_at_only_where_somebody_may_leave(
    states: torch.Tensor,
    scores: torch.Tensor,
    make_visits: Callable[..., list[Visit]],
    make_context: Callable[..., Context],
) -> None:
    policy = policy_with(2.0, 0.5, 2.0)
    first, second, third = make_visits(states, None, make_context())
    assert not policy.leaving(first, {})[0].any()
    assert not policy.leaving(third, {})[0].any()
    with pytest.raises(AssertionError, match="scores were looked at"):
        policy.leaving(second, {})


@pytest.mark.parametrize("measure", MEASURES)
def test_a_lower_threshold_never_deepens(
    states: torch.Tensor, scores: torch.Tensor, depths_of: DepthsOf, measure: str
) -> None:
    thresholds = (2.0, 1.0, 0.9, 0.7, 0.5, 0.3, 0.1, 0.0, -0.3, -0.7, -1.0, -1.9)
    found = [depths_of(policy_with(threshold, measure=measure), states, scores) for threshold in thresholds]
    assert all((later <= earlier).all() for earlier, later in pairwise(found))
    assert len({tuple(depths.flatten().tolist()) for depths in found}) > 3


# Thresholds that fall along a sequence


@pytest.mark.parametrize(("form", "first"), [("code", 0.8), ("paper", 0.82)])
def test_decay(depths_of: DepthsOf, make_context: Callable[..., Context], form: str, first: float) -> None:
    """Just above and just below the threshold of each step, which falls towards 0.72."""
    amplitude = first - 0.72
    thresholds = torch.tensor([0.72 + amplitude * math.exp(-2.0 * step / 10) for step in (0, 1, 5, 30)])
    context = make_context(2, 4, steps=torch.tensor([[0, 1, 5, 30]] * 2))
    scores = certain(torch.stack([thresholds + 1e-4, thresholds - 1e-4])).expand(4, 2, 4, 5)
    policy = policy_with(0.8, decay=form, decay_rate=2.0, max_length=10)
    hidden = torch.zeros(4, 2, 4, 8)
    assert depths_of(policy, hidden, scores, context).tolist() == [[1] * 4, [6] * 4]


def test_each_exit_decays_from_its_own_threshold(depths_of: DepthsOf) -> None:
    scores = certain(torch.full((4, 1, 5), 0.85))
    policy = policy_with(2.0, 0.9, 0.5, decay="code", max_length=4)
    # 0.9 falls below 0.85 where exp(−t) < 4/9, from step 1 on.
    assert depths_of(policy, torch.zeros(4, 1, 5, 8), scores).tolist() == [[4, 2, 2, 2, 2]]


@pytest.mark.parametrize("form", DECAYS)
def test_a_threshold_above_one_does_not_decay(depths_of: DepthsOf, form: str) -> None:
    scores = certain(torch.ones(4, 1, 5))
    policy = policy_with(1.05, decay=form, max_length=1)
    assert depths_of(policy, torch.zeros(4, 1, 5, 8), scores).eq(6).all()


# Numbers


@pytest.mark.parametrize("measure", OF_SCORES)
def test_a_number_has_no_classes(depths_of: DepthsOf, measure: str) -> None:
    message = (
        f"{measure} compares classes, but this model estimates a number; choose the measure saturation, or the "
        "policy patience"
    )
    with pytest.raises(InputError, match=message):
        depths_of(policy_with(0.0, measure=measure), torch.zeros(4, 1, 1, 8), torch.randn(4, 1, 1, 1))
