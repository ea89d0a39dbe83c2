"""Chances of leaving out blocks against values worked out by hand, and plans that follow them."""

import math

import pytest
import torch

from depthwise.depth.layer_dropout import drawn_plan, layerdrop, layerskip
from depthwise.errors import InputError


def test_layerdrop_is_constant() -> None:
    assert layerdrop(3, 0.2) == [0.2, 0.2, 0.2]


def test_layerskip_grows_with_the_layer() -> None:
    """exp(l·ln 2/4) − 1 of five layers, times 0.1."""
    expected = [0.0, 0.1 * (2**0.25 - 1), 0.1 * (math.sqrt(2) - 1), 0.1 * (2**0.75 - 1), 0.1]
    assert layerskip(5, 0.1) == pytest.approx(expected, rel=1e-12)


def test_layerskip_grows_with_training() -> None:
    assert layerskip(3, 0.4, 0.0) == [0.0, 0.0, 0.0]
    assert layerskip(3, 0.4, 0.5) == pytest.approx([0.0, 0.4 * (math.sqrt(2) - 1) ** 2, 0.4 * (math.sqrt(2) - 1)])
    assert layerskip(3, 0.4, 1.0) == pytest.approx(layerskip(3, 0.4))


def test_the_only_layer_stays() -> None:
    assert layerskip(1, 0.9) == [0.0]


@pytest.mark.parametrize("chance", [-0.1, 1.1, math.nan])
def test_a_chance_that_is_none(chance: float) -> None:
    message = rf"^the chance of leaving out a block is {chance}, but lies between 0 and 1$"
    with pytest.raises(InputError, match=message):
        layerdrop(2, chance)
    with pytest.raises(InputError, match=message):
        layerskip(2, chance)
    with pytest.raises(InputError, match=message):
        drawn_plan([0.0, chance], 2, 3, by_row=True)


@pytest.mark.parametrize("progress", [-0.1, 1.5])
def test_progress_outside_training(progress: float) -> None:
    with pytest.raises(InputError, match=rf"^the progress of training is {progress}, but goes from 0 to 1$"):
        layerskip(2, 0.1, progress)


@pytest.mark.parametrize("by_row", [False, True])
def test_certain_blocks(by_row: bool) -> None:
    plan = drawn_plan([0.0, 1.0, 0.0], 4, 5, by_row=by_row)
    assert plan.run.shape == (3, 4, 5)
    assert plan.run[0].all()
    assert not plan.run[1].any()
    assert plan.run[2].all()
    assert plan.weight is None


def test_all_blocks_may_be_left_out() -> None:
    assert not drawn_plan([1.0, 1.0], 2, 3, by_row=True).run.any()


def test_steps_of_a_row_share_their_blocks() -> None:
    run = drawn_plan([0.5] * 6, 50, 4, by_row=True).run
    assert (run == run[:, :, :1]).all()
    assert len(run[:, :, 0].T.unique(dim=0)) > 20


def test_rows_of_a_batch_share_their_blocks() -> None:
    plans = [drawn_plan([0.5] * 6, 50, 4, by_row=False).run for _ in range(50)]
    assert all((run == run[:, :1, :1]).all() for run in plans)
    assert len({tuple(run[:, 0, 0].tolist()) for run in plans}) > 20


def test_blocks_are_left_out_as_often_as_said() -> None:
    chances = [0.05, 0.3, 0.8]
    run = drawn_plan(chances, 20000, 1, by_row=True).run
    left_out = 1 - run.double().mean((1, 2))
    torch.testing.assert_close(left_out, torch.tensor(chances, dtype=torch.float64), atol=0.015, rtol=0)
    together = (~run[1] & ~run[2]).double().mean()
    assert together == pytest.approx(0.3 * 0.8, abs=0.015)


def test_chances_in_a_tensor() -> None:
    chances = [0.1, 0.5, 0.9]
    plans = []
    for given in (chances, torch.tensor(chances)):
        torch.manual_seed(3)
        plans.append(drawn_plan(given, 40, 2, by_row=True).run)
    assert torch.equal(*plans)


def test_nothing_is_looked_at() -> None:
    """Tensors of the meta device hold no values: whoever asks for one fails."""
    for chances in ([0.1, 0.5], torch.empty(2, device="meta")):
        assert drawn_plan(chances, 4, 3, by_row=True, device="meta").run.device.type == "meta"


def test_a_generator_of_its_own() -> None:
    """The global one is left alone."""
    before = torch.get_rng_state()
    plans = [
        drawn_plan([0.5] * 8, 10, 1, by_row=True, generator=torch.Generator().manual_seed(seed)).run
        for seed in (1, 1, 2)
    ]
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(plans[0], plans[1])
    assert not torch.equal(plans[0], plans[2])
