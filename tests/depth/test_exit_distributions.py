"""Where tokens leave, against the plain products."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depthwise.depth.exit_distributions import (
    depth_cross_entropy,
    expected_depth,
    expected_loss,
    first_exit,
    geometric_divergence,
    log_exit_probabilities,
    quantile_exit,
)
from depthwise.errors import InputError

LOGITS = torch.randn(5, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def products(chances: torch.Tensor) -> torch.Tensor:
    """The definition."""
    remaining, found = torch.ones_like(chances[0]), []
    for chance in chances:
        found.append(remaining * chance)
        remaining = remaining * (1 - chance)
    return torch.stack([*found, remaining])


def test_the_definition() -> None:
    torch.testing.assert_close(log_exit_probabilities(LOGITS).exp(), products(LOGITS.sigmoid()))


@given(st.lists(st.floats(-200, 200), min_size=1, max_size=8))
def test_probabilities_sum_to_one(logits: list[float]) -> None:
    log_probs = log_exit_probabilities(torch.tensor(logits, dtype=torch.float64))
    torch.testing.assert_close(log_probs.exp().sum(), torch.tensor(1.0, dtype=torch.float64))
    assert not log_probs.isnan().any()


def test_the_extremes() -> None:
    never, at_once = torch.full((4, 1), -torch.inf), torch.full((4, 1), torch.inf)
    assert log_exit_probabilities(torch.full((4, 1), -1e4)).exp().squeeze(1).tolist() == [0, 0, 0, 0, 1]
    assert log_exit_probabilities(torch.full((4, 1), 1e4)).exp().squeeze(1).tolist() == [1, 0, 0, 0, 0]
    assert first_exit(never.sigmoid()).tolist() == [5]
    assert first_exit(at_once.sigmoid()).tolist() == [1]
    assert log_exit_probabilities(torch.zeros(0, 3)).tolist() == [[0, 0, 0]]
    assert first_exit(torch.zeros(0, 3)).tolist() == [1, 1, 1]


def test_the_first_that_exceeds_the_threshold() -> None:
    chances = torch.tensor([[0.1, 0.5, 0.9], [0.8, 0.2, 0.95]])
    assert first_exit(chances).tolist() == [2, 3, 1]
    assert first_exit(chances, threshold=0.05).tolist() == [1, 1, 1]
    assert first_exit(chances, threshold=0.94).tolist() == [3, 3, 2]


def test_quantiles() -> None:
    log_probs = torch.tensor([[0.2], [0.3], [0.5]], dtype=torch.float64).log()
    assert [int(quantile_exit(log_probs, quantile)) for quantile in (0.1, 0.2, 0.4, 0.5, 0.6, 1.0)] == [
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    with pytest.raises(InputError, match=r"the quantile is 0.0, but lies above 0"):
        quantile_exit(log_probs, 0.0)


def test_expectations() -> None:
    probs, log_probs = products(LOGITS.sigmoid()), log_exit_probabilities(LOGITS)
    torch.testing.assert_close(expected_depth(log_probs), sum(n * probs[n - 1] for n in range(1, 7)))
    losses = torch.rand(6, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(expected_loss(losses, log_probs), sum(probs[n] * losses[n] for n in range(6)))


def test_divergence_from_a_geometric_prior() -> None:
    prior = products(torch.full((5, 1), 0.3, dtype=torch.float64)).unsqueeze(-1)
    log_probs = log_exit_probabilities(LOGITS)
    expected = (log_probs.exp() * (log_probs - prior.log())).sum(0)
    torch.testing.assert_close(geometric_divergence(log_probs, 0.3), expected)
    torch.testing.assert_close(geometric_divergence(prior.log(), 0.3), torch.zeros(1, 1, dtype=torch.float64))
    assert torch.isfinite(geometric_divergence(torch.tensor([[0.0], [-torch.inf]]), 0.3)).all()
    with pytest.raises(InputError, match=r"the chance of the geometric prior is 1.0, but lies between 0 and 1"):
        geometric_divergence(log_probs, 1.0)


def test_cross_entropy_with_depths() -> None:
    log_probs = log_exit_probabilities(LOGITS.clone().requires_grad_())
    depths = torch.tensor([[1, 6, 0], [3, 2, 5]])
    expected = -sum(
        log_probs[depth - 1, row, step] for row, step, depth in [(0, 0, 1), (0, 1, 6), (1, 0, 3), (1, 1, 2)]
    )
    valid = torch.tensor([[True, True, True], [True, True, False]])
    torch.testing.assert_close(depth_cross_entropy(log_probs, depths, valid), expected / 4)
    assert depth_cross_entropy(log_probs, torch.zeros_like(depths)) == 0
    assert depth_cross_entropy(log_probs, depths).requires_grad
