"""What gates are drawn to: zero where it should be, and nowhere else (I28)."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.distributions import Bernoulli, kl_divergence

from depthwise.losses.latent import (
    aggregated_prior,
    bernoulli_kl,
    depth_distance,
    fairseq_aggregated,
    fairseq_kl,
    fairseq_sharing,
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


@pytest.mark.parametrize(
    ("form", "pulls"),
    [
        (sharing_entropy, [0.0, math.log(4) - 1, math.log(2) - 1, -1.0]),
        (fairseq_sharing, [0, math.log(4), math.log(2), 0]),
    ],
)
def test_what_sharing_pulls_at(form: Callable[[torch.Tensor], torch.Tensor], pulls: list[float]) -> None:
    """Both are the same number, but the one of the released code draws no layer towards being used by all. What hard
    samples close for everybody stays as it is."""
    used = torch.tensor([0.0, 0.25, 0.5, 1.0], requires_grad=True)
    loss = form(used)
    assert float(loss.detach()) == pytest.approx(math.log(2))
    loss.backward()
    assert used.grad.tolist() == pytest.approx(pulls)


@pytest.mark.parametrize(
    ("squared", "depth_weight", "sharing_weight", "num_undecided"),
    [(True, 0.025, 0.05, 0), (False, 0.1, 0.1, 0), (False, 0.5, 0.05, 24), (False, 5.0, 0.5, 24)],
)
def test_what_stays_of_the_distance_keeps_gates_from_deciding(
    squared: bool, depth_weight: float, sharing_weight: float, num_undecided: int
) -> None:
    """Where K is reached the distance itself still pushes, to and fro, and Adam makes all steps small beside that: only
    the ratio of both weights matters. Its square does not push there.
    """
    logits = torch.nn.Parameter(torch.randn(4, 24, generator=torch.Generator().manual_seed(0)) / 2)
    optimizer = torch.optim.Adam([logits], lr=0.05, betas=(0.9, 0.98))
    for _ in range(400):
        used = logits.sigmoid().mean(0)
        distance = depth_distance(used, 12.0, squared=squared)
        optimizer.zero_grad()
        (depth_weight * distance + sharing_weight * sharing_entropy(used)).backward()
        optimizer.step()
    probabilities = logits.detach().sigmoid()
    undecided = ((probabilities > 0.1) & (probabilities < 0.9)).sum(-1).float().mean()
    assert float(undecided) == pytest.approx(num_undecided, abs=1)
    assert probabilities.sum(-1).mean().item() == pytest.approx(12, abs=0.5)
