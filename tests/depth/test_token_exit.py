"""The depth of every token, guessed at the first exit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from depthwise.config import TokenExitConfig
from depthwise.depth import Context, Lesson, TokenExit, Visit
from depthwise.depth.exit_targets import token_targets

EXITS = torch.tensor([1, 2, 4, 6])


def policy_with(**options: Any) -> TokenExit:
    return TokenExit(TokenExitConfig(**options), width=8, num_exits=4).double()


def test_the_equation(states: torch.Tensor, depths_of: Callable[..., torch.Tensor]) -> None:
    policy = policy_with()
    found = depths_of(policy, states)
    assert torch.equal(found, EXITS[policy.classifier(states[0]).argmax(-1)])
    assert set(found.flatten().tolist()) > {1, 6}, "the states at hand should tell exits apart"


def test_only_the_first_exit_is_asked(states: torch.Tensor, depths_of: Callable[..., torch.Tensor]) -> None:
    other = torch.cat([states[:1], torch.randn_like(states[1:])])
    policy = policy_with()
    assert torch.equal(depths_of(policy, states), depths_of(policy, other))


def test_who_has_left_stays_away(
    states: torch.Tensor,
    make_visits: Callable[..., list[Visit]],
    make_context: Callable[..., Context],
) -> None:
    policy, state, before = policy_with(), {}, torch.zeros(3, 5, dtype=torch.bool)
    for visit in make_visits(states, None, make_context()):
        leaves, state = policy.leaving(visit, state)
        assert (leaves | ~before).all()
        assert set(state) == {"chosen"}
        before = leaves


@pytest.mark.parametrize(
    "options", [{}, {"oracle": "likelihood", "penalty": 0.2, "smoothing": 2.0}, {"never_correct": "last"}]
)
def test_the_loss_is_summed_over_tokens(lesson: Lesson, options: dict[str, Any]) -> None:
    policy = policy_with(**options)
    assert not policy.by_sequence
    targets = token_targets(lesson, policy.options)
    expected = torch.zeros((), dtype=torch.float64)
    for row, step in lesson.valid.nonzero().tolist():
        expected -= policy.classifier(lesson.hidden[0][row, step]).log_softmax(-1)[targets[row, step] - 1]
    assert set(policy.losses(lesson)) == {"exit"}
    torch.testing.assert_close(policy.losses(lesson)["exit"], expected)


def test_options_reach_the_oracle(lesson: Lesson) -> None:
    """Of five tokens in a row, exit 1 is right about two, exit 3 about two others, none about the last."""
    correct = torch.zeros(4, 3, 5, dtype=torch.bool)
    correct[0, 1, :2] = correct[2, 1, 2:4] = True
    lesson = replace(lesson, correct=correct)
    variants = ({}, {"oracle": "likelihood"}, {"penalty": 0.5}, {"smoothing": 3.0}, {"never_correct": "last"})
    policy, found = policy_with(), set()
    for options in variants:
        policy.options = TokenExitConfig(**options)
        found.add(policy.losses(lesson)["exit"].item())
    assert len(found) == len(variants)


@pytest.mark.parametrize("detach", [False, True])
def test_where_gradients_go(lesson: Lesson, detach: bool) -> None:
    policy = policy_with(oracle="likelihood", detach_features=detach)
    policy.losses(lesson)["exit"].backward()
    assert policy.classifier.weight.grad.abs().sum() > 0
    assert (lesson.hidden[0].grad is None) == detach
    if not detach:
        assert torch.equal(lesson.hidden[0].grad.abs().sum(-1) > 0, lesson.valid)
    assert all(hidden.grad is None for hidden in lesson.hidden[1:])
    assert lesson.nll.grad is None
    assert lesson.context.source.grad is None


def test_it_learns_what_states_tell(lesson: Lesson, depths_of: Callable[..., torch.Tensor]) -> None:
    """The first axis of a state says which exit is the first to be right."""
    wanted = torch.randint(0, 4, (3, 5))
    hidden = torch.nn.functional.one_hot(wanted, 8).double()
    lesson = replace(
        lesson,
        hidden=(hidden, *lesson.hidden[1:]),
        correct=torch.arange(4).view(4, 1, 1) >= wanted,
        valid=torch.ones(3, 5, dtype=torch.bool),
    )
    policy = policy_with()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        policy.losses(lesson)["exit"].backward()
        optimizer.step()
    assert torch.equal(depths_of(policy, hidden.expand(4, 3, 5, 8)), EXITS[wanted])
