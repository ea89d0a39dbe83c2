"""Latent layers: what samples are like, and what stands for them outside training."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

from depthwise.config import LatentConfig
from depthwise.depth import LatentLayers
from depthwise.depth.latent import expected_sample, logistic_noise
from depthwise.errors import InputError

LOGITS = torch.tensor([[-3.0, -0.5, 0.0, 1.0, 4.0], [2.0, -2.0, 0.3, -0.3, 0.0]])
TWO = LatentConfig(per_language=True, target_languages=("de", "fr"))
LANGUAGES = torch.tensor([1, 0, 1])


def layers(logits: Tensor = LOGITS, options: LatentConfig = TWO, *, hard: bool = False) -> LatentLayers:
    made = LatentLayers(options, logits.shape[1], "decoder")
    with torch.no_grad():
        made.logits.copy_(logits)
        made.hardness.fill_(float(hard))
    return made


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_hard_samples_are_open_as_often_as_the_probability_says(temperature: float) -> None:
    """Whatever the temperature is (I28)."""
    of = layers(hard=True)
    of.temperature.fill_(temperature)
    noise = logistic_noise((20_000, 2, 5), generator=torch.Generator().manual_seed(0))
    drawn = torch.stack([of.samples(each) for each in noise]).detach()
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(drawn.mean(0), LOGITS.sigmoid(), atol=0.015, rtol=0)


def test_soft_samples_have_the_mean_that_stands_for_them() -> None:
    of = layers()
    noise = logistic_noise((20_000, 2, 5), generator=torch.Generator().manual_seed(0))
    mean = torch.stack([of.samples(each) for each in noise]).detach().mean(0)
    torch.testing.assert_close(of.expected().detach(), mean, atol=0.01, rtol=0)
    torch.testing.assert_close(layers(hard=True).expected(), LOGITS.sigmoid())


def test_expected_samples_of_the_paper() -> None:
    found = expected_sample(torch.tensor([2.0, -4.0, 0.0]), 5.0)
    torch.testing.assert_close(found, torch.tensor([0.596, 0.315, 0.5]), atol=1e-3, rtol=0)
    wide = torch.linspace(-8, 8, 9, dtype=torch.float64)
    torch.testing.assert_close(expected_sample(wide, 5.0) + expected_sample(-wide, 5.0), torch.ones_like(wide))
    torch.testing.assert_close(expected_sample(wide, 0.01), wide.sigmoid(), atol=1e-3, rtol=0)


def test_hard_samples_learn_like_soft_ones() -> None:
    noise, gradients = logistic_noise((2, 5), generator=torch.Generator().manual_seed(1)), []
    for hard in (False, True):
        of = layers(hard=hard)
        (of.samples(noise) * torch.arange(10.0).view(2, 5)).sum().backward()
        gradients.append(of.logits.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_rows_of_one_language_share_a_sample() -> None:
    of = layers().train()
    gates = of(LANGUAGES, 3)
    assert gates.weight is not None
    assert gates.weight.shape == (5, 3)
    torch.testing.assert_close(gates.weight[:, 0], gates.weight[:, 2])
    assert not torch.equal(gates.weight[:, 0], gates.weight[:, 1])
    assert of.drawn is not None
    torch.testing.assert_close(gates.weight[:, 1], of.drawn.samples[0])
    again = of(LANGUAGES, 3)
    assert not torch.equal(again.weight, gates.weight)
    of.noise = torch.zeros(2, 5)
    torch.testing.assert_close(of(LANGUAGES, 3).weight[:, 1], (LOGITS[0] / 5).sigmoid())


def test_copies_have_no_pass_behind_them() -> None:
    """What a pass of training drew leads to its graph, which cannot be copied, and would be pickled with it."""
    of = layers(hard=True).train()
    of.noise = torch.zeros(2, 5)
    of(LANGUAGES, 3)
    twin = copy.deepcopy(of)
    assert (twin.drawn, of.drawn is None) == (None, False)
    assert torch.equal(twin.logits, of.logits)
    assert torch.equal(twin(LANGUAGES, 3).weight, of(LANGUAGES, 3).weight)
    assert pickle.loads(pickle.dumps(of)).drawn is None


def test_nothing_is_drawn_outside_training() -> None:
    of = layers().eval()
    state = torch.get_rng_state()
    soft = of(LANGUAGES, 3)
    of.use("hard")
    hard = of(LANGUAGES, 3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(soft.weight, of.expected()[LANGUAGES].t())
    assert hard.weight is None
    assert torch.equal(hard.run, (LOGITS > 0)[LANGUAGES].t())
    assert hard.depths(5).tolist() == [2, 2, 2]
    assert hard.depths(4).tolist() == [2, 1, 2]
    assert soft.depths(5) == 5
    plan = hard.plan(5, 3, 2)
    assert plan.depths.tolist() == [[2, 2]] * 3
    assert soft.plan(4, 3, 2).weight.shape == (4, 3, 2)


def test_samples_for_comparison_follow_a_seed() -> None:
    of = layers().eval()
    of.use("sampled", seed=3)
    first, second = of(LANGUAGES, 3).weight, of(LANGUAGES, 3).weight
    assert not torch.equal(first, second)
    of.use("sampled", seed=3)
    assert torch.equal(of(LANGUAGES, 3).weight, first)
    of.use("sampled", seed=4)
    assert not torch.equal(of(LANGUAGES, 3).weight, first)


def test_a_seed_survives_a_change_of_device() -> None:
    """Where the generator is of another device, one of the same seed takes its place."""
    of = layers().eval()
    of.use("sampled", seed=3)
    first = of(LANGUAGES, 3).weight
    of.use("sampled", seed=3)
    of._generator = None
    assert torch.equal(of(LANGUAGES, 3).weight, first)


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (None, "target_languages is missing; the gates of the decoder differ between de, fr"),
        (torch.tensor([0]), "one number for each of 3 rows"),
        (torch.tensor([0, 1, 2]), "0 to 1 stand for de, fr"),
    ],
)
def test_languages_must_be_told(languages: Tensor | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        layers()(languages, 3)


def test_one_set_of_gates_asks_for_no_language() -> None:
    of = layers(LOGITS[:1], LatentConfig())
    assert of(None, 3).weight.shape == (5,)
