"""Leaving once exits agree."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from depthwise.config import PatienceConfig
from depthwise.depth import Context, Patience, Visit

DepthsOf = Callable[..., torch.Tensor]
EXITS = (1, 2, 3, 4, 5, 6)


def policy_with(patience: int, tolerance: float = 0.1) -> Patience:
    return Patience(PatienceConfig(patience=patience, tolerance=tolerance))


def guessing(*rows: str) -> torch.Tensor:
    """Scores of rows of one token whose first guess at each exit is this digit."""
    guesses = torch.tensor([[int(digit) for digit in row] for row in rows]).T.unsqueeze(-1)
    return torch.nn.functional.one_hot(guesses, 10).double().log_softmax(-1)


def states_for(scores: torch.Tensor) -> torch.Tensor:
    return torch.zeros(*scores.shape[:3], 8)


@pytest.mark.parametrize(
    ("patience", "expected"),
    [
        (1, [2, 2, 3, 4, 2, 6]),
        (2, [3, 6, 4, 5, 3, 6]),
        (3, [4, 6, 5, 6, 6, 6]),
        (4, [5, 6, 6, 6, 6, 6]),
        (5, [6, 6, 6, 6, 6, 6]),
    ],
)
def test_exits_in_a_row(
    depths_of: DepthsOf, make_context: Callable[..., Context], patience: int, expected: list[int]
) -> None:
    scores = guessing("333333", "112200", "122223", "124444", "555766", "121212")
    context = make_context(6, 1, exits=EXITS)
    assert depths_of(policy_with(patience), states_for(scores), scores, context).flatten().tolist() == expected


def test_nobody_leaves_before_patience_can_have_run_out(
    depths_of: DepthsOf, make_context: Callable[..., Context]
) -> None:
    scores = guessing("111111", "222222")
    for patience in range(1, 5):
        depths = depths_of(policy_with(patience), states_for(scores), scores, make_context(2, 1, exits=EXITS))
        assert depths.tolist() == [[patience + 1]] * 2


def test_more_patience_never_saves(depths_of: DepthsOf, make_context: Callable[..., Context]) -> None:
    scores = torch.randn(6, 40, 3, 2).log_softmax(-1)
    context = make_context(40, 3, exits=EXITS)
    found = [depths_of(policy_with(patience), states_for(scores), scores, context) for patience in (1, 2, 3, 4, 5)]
    assert all((later >= earlier).all() for earlier, later in pairwise(found))
    assert not torch.equal(found[0], found[1])


def test_nobody_leaves_with_patience_without_end(depths_of: DepthsOf, scores: torch.Tensor) -> None:
    alike = scores[:1].expand(4, -1, -1, -1)
    assert depths_of(policy_with(10**9), states_for(alike), alike).eq(6).all()


@pytest.mark.parametrize(("tolerance", "expected"), [(0.1, [4, 5, 6]), (0.3, [3, 4, 6]), (0.01, [6, 6, 6])])
def test_numbers_that_differ_little(
    depths_of: DepthsOf, make_context: Callable[..., Context], tolerance: float, expected: list[int]
) -> None:
    numbers = torch.tensor([[1.0, 1.2, 1.25, 1.22, 1.22, 1.0], [0.0, 1, 1.2, 1.25, 1.2, 0], [0.0, -1, 1, -1, 1, -1]])
    scores = numbers.T.reshape(6, 3, 1, 1)
    policy = policy_with(2, tolerance)
    depths = depths_of(policy, states_for(scores), scores, make_context(3, 1, exits=EXITS))
    assert depths.flatten().tolist() == expected


def test_a_difference_of_the_tolerance_is_one(depths_of: DepthsOf, make_context: Callable[..., Context]) -> None:
    scores = torch.tensor([0.0, 0.5, 0.75, 5.0, 5.0, 5.0]).view(6, 1, 1, 1)
    depths = depths_of(policy_with(1, 0.5), states_for(scores), scores, make_context(1, 1, exits=EXITS))
    assert depths.tolist() == [[3]]


def test_what_is_remembered(
    make_visits: Callable[..., list[Visit]], make_context: Callable[..., Context], scores: torch.Tensor
) -> None:
    policy, state = policy_with(1), {}
    for index, visit in enumerate(make_visits(states_for(scores), scores, make_context())):
        _, state = policy.leaving(visit, state)
        assert torch.equal(state["guess"], scores[index].argmax(-1))
        assert set(state) == {"guess", "count"}
