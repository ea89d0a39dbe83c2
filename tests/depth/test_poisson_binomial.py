"""A chance of leaving at every exit."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from depthwise.config import PoissonBinomialConfig
from depthwise.depth import Context, Lesson, PoissonBinomial, Visit
from depthwise.depth.exit_distributions import first_exit, log_exit_probabilities, quantile_exit
from depthwise.depth.exit_targets import token_targets

EXITS = torch.tensor([1, 2, 4, 6])
DepthsOf = Callable[..., torch.Tensor]


def policy_with(**options: Any) -> PoissonBinomial:
    return PoissonBinomial(PoissonBinomialConfig(**options), width=8, num_exits=4).double()


def constant(chances: list[float], **options: Any) -> PoissonBinomial:
    """A policy with these chances, whatever the states."""
    policy = policy_with(**options)
    with torch.no_grad():
        for classifier, chance in zip(policy.classifiers, chances, strict=True):
            classifier.weight.zero_()
            classifier.bias.fill_(torch.tensor(chance, dtype=torch.float64).logit())
    return policy


def logits_of(policy: PoissonBinomial, states: torch.Tensor) -> torch.Tensor:
    """w_n·hⁿ + b_n by hand, for all exits but the last."""
    shared = policy.options.shared
    rows = [policy.classifiers[0 if shared else index] for index in range(3)]
    return torch.stack([(states[index] @ row.weight[0]) + row.bias for index, row in enumerate(rows)])


# Deciding


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.7])
def test_the_first_chance_above_the_threshold(
    states: torch.Tensor, depths_of: DepthsOf, shared: bool, threshold: float
) -> None:
    policy = policy_with(shared=shared, threshold=threshold)
    assert len(policy.classifiers) == (1 if shared else 3)
    expected = EXITS[first_exit(logits_of(policy, states).sigmoid(), threshold) - 1]
    assert torch.equal(depths_of(policy, states), expected)


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8, 1.0])
def test_the_first_exit_by_which_a_share_has_left(states: torch.Tensor, depths_of: DepthsOf, threshold: float) -> None:
    policy = policy_with(decision="quantile", threshold=threshold)
    expected = EXITS[quantile_exit(log_exit_probabilities(logits_of(policy, states)), threshold) - 1]
    assert torch.equal(depths_of(policy, states), expected)


def test_a_quantile_adds_up_what_steps_look_at_alone(states: torch.Tensor, depths_of: DepthsOf) -> None:
    chances = [0.3, 0.3, 0.3]
    assert depths_of(constant(chances), states).unique().tolist() == [6]
    assert depths_of(constant(chances, decision="quantile"), states).unique().tolist() == [2]


def test_as_often_as_the_chances_say(depths_of: DepthsOf) -> None:
    policy = constant([0.2, 0.5, 0.25], decision="sample")
    depths = depths_of(policy, torch.zeros(4, 100, 200, 8, dtype=torch.float64))
    shares = [float((depths == depth).double().mean()) for depth in EXITS]
    assert shares == pytest.approx([0.2, 0.4, 0.1, 0.3], abs=0.015)
    torch.manual_seed(0)
    first = depths_of(policy, torch.zeros(4, 3, 5, 8, dtype=torch.float64))
    torch.manual_seed(0)
    assert torch.equal(first, depths_of(policy, torch.zeros(4, 3, 5, 8, dtype=torch.float64)))


@pytest.mark.parametrize("decision", ["step", "quantile", "sample"])
def test_the_extremes(states: torch.Tensor, depths_of: DepthsOf, decision: str) -> None:
    assert depths_of(constant([0.0, 0.0, 0.0], decision=decision), states).eq(6).all()
    assert depths_of(constant([1.0, 0.0, 0.0], decision=decision), states).eq(1).all()
    assert depths_of(constant([0.0, 0.0, 1.0], decision=decision), states).eq(4).all()


def test_nobody_leaves_at_threshold_one(states: torch.Tensor, depths_of: DepthsOf) -> None:
    assert depths_of(constant([1.0, 1.0, 1.0], threshold=1.0), states).eq(6).all()


@pytest.mark.parametrize("decision", ["step", "quantile"])
def test_a_lower_threshold_never_deepens(states: torch.Tensor, depths_of: DepthsOf, decision: str) -> None:
    policy, found = policy_with(), []
    for threshold in (1.0, 0.9, 0.6, 0.4, 0.1, 0.01):
        policy.options = PoissonBinomialConfig(decision=decision, threshold=threshold)
        found.append(depths_of(policy, states))
    assert all((later <= earlier).all() for earlier, later in pairwise(found))
    assert not torch.equal(found[0], found[-1])


@pytest.mark.parametrize(
    ("decision", "keys"), [("step", set()), ("quantile", {"remains"}), ("sample", {"remains", "drawn"})]
)
def test_what_is_remembered(
    states: torch.Tensor,
    make_visits: Callable[..., list[Visit]],
    make_context: Callable[..., Context],
    decision: str,
    keys: set[str],
) -> None:
    policy, state = policy_with(decision=decision), {}
    for visit in make_visits(states, None, make_context()):
        given = {name: tensor.clone() for name, tensor in state.items()}
        _, after = policy.leaving(visit, state)
        assert all(torch.equal(state[name], given[name]) for name in given), "a state is not written to"
        state = after
        assert set(state) == keys


# Learning


def log_probs_of(policy: PoissonBinomial, lesson: Lesson) -> torch.Tensor:
    chances = logits_of(policy, torch.stack(lesson.hidden)).sigmoid()
    passes = 1 - chances
    products = [chances[0], passes[0] * chances[1], passes[0] * passes[1] * chances[2], passes.prod(0)]
    return torch.stack(products).log()


@pytest.mark.parametrize(
    "options",
    [{}, {"shared": True, "never_correct": "last"}, {"oracle": "likelihood", "penalty": 0.2, "smoothing": 2.0}],
)
def test_cross_entropy_with_the_oracle(lesson: Lesson, options: dict[str, Any]) -> None:
    policy = policy_with(**options)
    log_probs, targets = log_probs_of(policy, lesson), token_targets(lesson, policy.options)
    expected = -sum(log_probs[targets[b, t] - 1, b, t] for b, t in lesson.valid.nonzero().tolist())
    assert set(policy.losses(lesson)) == {"exit"}
    torch.testing.assert_close(policy.losses(lesson)["exit"], expected)


def test_expected_loss_and_divergence_from_the_prior(lesson: Lesson) -> None:
    policy = policy_with(objective="expected_loss", beta=0.3, prior=0.4)
    log_probs = log_probs_of(policy, lesson)
    prior = torch.tensor([0.4, 0.24, 0.144, 0.216], dtype=torch.float64).view(4, 1, 1)
    losses = policy.losses(lesson)
    assert set(losses) == {"expected_loss", "divergence"}
    expected = (log_probs.exp() * lesson.nll).sum(0)[lesson.valid].sum()
    divergence = (log_probs.exp() * (log_probs - prior.log())).sum(0)[lesson.valid].sum()
    torch.testing.assert_close(losses["expected_loss"], expected)
    torch.testing.assert_close(losses["divergence"], 0.3 * divergence)


@pytest.mark.parametrize("options", [{}, {"objective": "expected_loss"}])
def test_what_has_no_label_teaches_nothing(lesson: Lesson, options: dict[str, Any]) -> None:
    policy = policy_with(**options)
    away = ~lesson.valid
    other = replace(
        lesson,
        hidden=tuple(torch.where(away.unsqueeze(-1), 50.0, hidden) for hidden in lesson.hidden),
        nll=lesson.nll.masked_fill(away, torch.inf),
        correct=lesson.correct ^ away,
    )
    expected = policy.losses(lesson)
    for name, loss in policy.losses(other).items():
        torch.testing.assert_close(loss, expected[name])
    gradients = [
        torch.autograd.grad(sum(policy.losses(each).values()), list(policy.parameters())) for each in (lesson, other)
    ]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("objective", ["oracle", "expected_loss"])
@pytest.mark.parametrize("detach", [False, True])
def test_where_gradients_go(lesson: Lesson, objective: str, detach: bool) -> None:
    """An oracle says nothing of exits above the one that it takes."""
    oracle = "likelihood" if objective == "oracle" else "correctness"
    policy = policy_with(objective=objective, oracle=oracle, detach_features=detach)
    sum(policy.losses(lesson).values()).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in policy.parameters())
    targets = token_targets(lesson, policy.options)
    for index, hidden in enumerate(lesson.hidden[:-1]):
        assert (hidden.grad is None) == detach
        if not detach:
            reached = targets > index if objective == "oracle" else lesson.valid
            assert torch.equal(hidden.grad.abs().sum(-1) > 0, reached)
    assert lesson.hidden[-1].grad is None
    assert (lesson.nll.grad is None) == (objective == "oracle"), "an oracle is a constant, an expectation is not"


def test_the_expected_loss_trains_exits_by_their_share(lesson: Lesson) -> None:
    policy = policy_with(objective="expected_loss")
    policy.losses(lesson)["expected_loss"].backward()
    torch.testing.assert_close(lesson.nll.grad, log_probs_of(policy, lesson).exp() * lesson.valid)


@pytest.mark.parametrize(
    "options", [{"oracle": "likelihood", "penalty": 0.1}, {"objective": "expected_loss", "beta": 0.01}]
)
def test_it_learns_where_loss_is_least(lesson: Lesson, depths_of: DepthsOf, options: dict[str, Any]) -> None:
    """States name the exit whose loss is by far the least."""
    wanted = torch.randint(0, 4, (3, 5))
    hidden = 4 * torch.nn.functional.one_hot(wanted, 8).double()
    lesson = replace(
        lesson,
        hidden=(hidden,) * 4,
        nll=torch.where(torch.arange(4).view(4, 1, 1) == wanted, 0.1, 3.0).double(),
        valid=torch.ones(3, 5, dtype=torch.bool),
    )
    policy = policy_with(**options)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    for _ in range(80):
        optimizer.zero_grad()
        sum(policy.losses(lesson).values()).backward()
        optimizer.step()
    assert torch.equal(depths_of(policy, hidden.expand(4, 3, 5, 8)), EXITS[wanted])
