"""Leaving where a classifier says that going on would change nothing."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from depthwise.config import LearnedConfidenceConfig
from depthwise.depth import LearnedConfidence, Lesson

EXITS = torch.tensor([1, 2, 4, 6])
DepthsOf = Callable[..., torch.Tensor]


def policy_with(*threshold: float, **options: Any) -> LearnedConfidence:
    config = LearnedConfidenceConfig(threshold=threshold or (0.5,), **options)
    return LearnedConfidence(config, width=8).double()


def confidence_of(policy: LearnedConfidence, states: torch.Tensor) -> torch.Tensor:
    return (states @ policy.classifier.weight[0] + policy.classifier.bias).sigmoid()


@pytest.mark.parametrize("threshold", [(0.5,), (0.7,), (0.8, 0.6, 0.4)])
def test_the_first_exit_that_is_sure_enough(
    states: torch.Tensor, depths_of: DepthsOf, threshold: tuple[float, ...]
) -> None:
    policy = policy_with(*threshold)
    confidence, expected = confidence_of(policy, states), torch.full((3, 5), 6)
    for index in (2, 1, 0):
        enough = confidence[index] >= threshold[index if len(threshold) > 1 else 0]
        expected = torch.where(enough, EXITS[index], expected)
    assert torch.equal(depths_of(policy, states), expected)
    assert len(expected.unique()) > 1


def test_as_sure_as_the_threshold_is_enough(depths_of: DepthsOf) -> None:
    policy = policy_with(0.5)
    torch.nn.init.zeros_(policy.classifier.bias)
    assert depths_of(policy, torch.zeros(4, 1, 2, 8, dtype=torch.float64)).eq(1).all()


def test_nobody_leaves_above_one(states: torch.Tensor, depths_of: DepthsOf) -> None:
    policy = policy_with(2.0)
    torch.nn.init.constant_(policy.classifier.bias, 1e4)
    assert depths_of(policy, states).eq(6).all()


def test_a_lower_threshold_never_deepens(states: torch.Tensor, depths_of: DepthsOf) -> None:
    policy, found = policy_with(), []
    for threshold in (2.0, 0.9, 0.6, 0.5, 0.4, 0.1, 0.0):
        policy.options = LearnedConfidenceConfig(threshold=(threshold,))
        found.append(depths_of(policy, states))
    assert all((later <= earlier).all() for earlier, later in pairwise(found))
    assert found[0].eq(6).all()
    assert found[-1].eq(1).all()


def test_decay(depths_of: DepthsOf) -> None:
    """Confidence 0.85 where the threshold falls from 0.9 to 0.81: enough from step 1 on."""
    policy = policy_with(0.9, decay="code", max_length=4)
    torch.nn.init.constant_(policy.classifier.bias, math.log(0.85 / 0.15))
    assert depths_of(policy, torch.zeros(4, 1, 3, 8, dtype=torch.float64)).tolist() == [[6, 1, 1]]


def by_loops(policy: LearnedConfidence, lesson: Lesson) -> torch.Tensor:
    """The definition: at every exit the weight of a token is the share of those of the other class."""
    total = torch.zeros((), dtype=torch.float64)
    labelled = lesson.valid.nonzero().tolist()
    for index in range(3):
        agreeing = sum(bool(lesson.agrees[index, b, t]) for b, t in labelled)
        for b, t in labelled:
            confidence = confidence_of(policy, lesson.hidden[index][b, t].detach()).squeeze()
            if lesson.agrees[index, b, t]:
                total = total - confidence.log() * (len(labelled) - agreeing) / len(labelled)
            else:
                total = total - (1 - confidence).log() * agreeing / len(labelled)
    return total / 3


def test_the_loss(lesson: Lesson) -> None:
    policy = policy_with()
    losses = policy.losses(lesson)
    assert set(losses) == {"confidence"}
    assert not policy.by_sequence
    torch.testing.assert_close(losses["confidence"], by_loops(policy, lesson))


def test_both_classes_weigh_the_same(lesson: Lesson) -> None:
    """Of eight tokens one agrees; a classifier that is as sure of all of them has no reason to move."""
    agrees = torch.zeros_like(lesson.agrees)
    agrees[:, 1, 0] = True
    policy = policy_with()
    torch.nn.init.zeros_(policy.classifier.weight)
    torch.nn.init.zeros_(policy.classifier.bias)
    policy.losses(replace(lesson, agrees=agrees))["confidence"].backward()
    assert policy.classifier.bias.grad.item() == pytest.approx(0, abs=1e-12)


def test_a_class_alone_teaches_nothing(lesson: Lesson) -> None:
    for agrees in (torch.zeros_like(lesson.agrees), torch.ones_like(lesson.agrees)):
        assert policy_with().losses(replace(lesson, agrees=agrees))["confidence"] == 0
    nobody = replace(lesson, valid=torch.zeros_like(lesson.valid))
    assert policy_with().losses(nobody)["confidence"] == 0


def test_what_has_no_label_does_not_count(lesson: Lesson) -> None:
    policy, away = policy_with(), ~lesson.valid
    hidden = tuple(torch.where(away.unsqueeze(-1), 50.0, each) for each in lesson.hidden)
    other = replace(lesson, hidden=hidden, agrees=lesson.agrees ^ away)
    torch.testing.assert_close(policy.losses(other), policy.losses(lesson))


def test_the_rest_of_the_model_is_left_alone(lesson: Lesson) -> None:
    policy = policy_with()
    policy.losses(lesson)["confidence"].backward()
    assert policy.classifier.weight.grad.abs().sum() > 0
    assert policy.classifier.bias.grad.abs().sum() > 0
    assert all(hidden.grad is None for hidden in lesson.hidden)
    assert lesson.nll.grad is None
