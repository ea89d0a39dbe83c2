"""What gates are drawn to: zero where it should be, and nowhere else (I28)."""

import math

import pytest
import torch
from torch.distributions import Bernoulli, kl_divergence

from depthwise.losses.latent import (
    aggregated_prior,
    bernoulli_kl,
    depth_distance,
    fairseq_aggregated,
    fairseq_kl,
    sharing_entropy,
)

LOGITS = torch.tensor([[-3.0, 0.0, 1.5], [40.0, -40.0, 0.2]], dtype=torch.float64)


@pytest.mark.parametrize("prior", [0.5, 0.2])
def test_the_divergence_is_that_of_two_bernoulli_distributions(prior: float) -> None:
    wanted = kl_divergence(Bernoulli(logits=LOGITS), Bernoulli(torch.tensor(prior, dtype=torch.float64))).sum(-1)
    torch.testing.assert_close(bernoulli_kl(LOGITS, prior), wanted)


def test_the_divergence_is_zero_at_the_prior_alone() -> None:
    prior = LOGITS[0].sigmoid()
    assert float(bernoulli_kl(LOGITS[0], prior)) == pytest.approx(0, abs=1e-12)
    for layer in range(3):
        moved = LOGITS[0].clone()
        moved[layer] += 0.1
        assert float(bernoulli_kl(moved, prior)) > 1e-5


def test_the_aggregated_prior_teaches_nobody() -> None:
    logits = torch.tensor([[1.0, -1.0], [0.0, 2.0]], requires_grad=True)
    prior = aggregated_prior(logits.sigmoid())
    torch.testing.assert_close(prior, logits.detach().sigmoid().mean(0))
    bernoulli_kl(logits, prior)[0].backward()
    assert torch.equal(logits.grad[1], torch.zeros(2))
    assert bool((logits.grad[0] != 0).all())


def test_forms_of_the_released_code() -> None:
    samples = torch.tensor([[1.0, 0.0, 0.5, 1.0], [1.0, 0.0, 0.0, 1.0]])
    first = (math.log(2) + 0 + 0.5 * 0 + math.log(2)) / 4
    assert fairseq_kl(samples).tolist() == pytest.approx([first, 2 * math.log(2) / 4], abs=1e-5)
    prior = fairseq_aggregated(samples)
    assert prior.tolist() == pytest.approx([2 / 4.5, 0, 0.5 / 4.5, 2 / 4.5])
    second = 2 * -math.log(2 / 4.5) / 4
    assert float(fairseq_kl(samples, prior)[1]) == pytest.approx(second, abs=1e-5)


def test_the_distance_to_a_depth() -> None:
    used = torch.tensor([0.25, 0.75, 1.0])
    assert float(depth_distance(used, 2.0)) == 0
    assert float(depth_distance(used, 3.0)) == 1
    assert float(depth_distance(used, 4.0, squared=True)) == 4


def test_sharing() -> None:
    assert float(sharing_entropy(torch.tensor([0.0, 1.0]))) == 0
    assert float(sharing_entropy(torch.tensor([0.5, 1.0]))) == pytest.approx(0.5 * math.log(2))
