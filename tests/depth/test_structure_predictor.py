"""How many layers an input needs (I26): weights of layers, and where they stop."""

from typing import Any

import pytest
import torch

from depthwise.config import FixedDepthConfig, PatienceConfig, StructureConfig, StructureExitConfig
from depthwise.depth import FixedDepth, Patience, StructureExit, StructurePredictor
from depthwise.depth.structure_predictor import suffix_sums
from depthwise.errors import InputError

ROWS, STEPS, WIDTH, LAYERS, STATIC = 5, 4, 6, 7, 2
VALID = torch.arange(STEPS) < torch.tensor([4, 1, 2, 3, 4]).unsqueeze(1)


def predictor(**options: Any) -> StructurePredictor:
    torch.manual_seed(0)
    made = StructurePredictor(StructureConfig(num_static=STATIC, **options), width=WIDTH, num_layers=LAYERS).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made.eval()


@pytest.fixture
def states() -> torch.Tensor:
    return torch.randn(ROWS, STEPS, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("needed", [1, 2, 5])
def test_a_sure_number_of_layers_is_as_many_ones(needed: int) -> None:
    one_hot = torch.nn.functional.one_hot(torch.tensor([needed - 1]), 5).double()
    assert suffix_sums(one_hot).tolist() == [[1.0] * needed + [0.0] * (5 - needed)]
    with_none = torch.nn.functional.one_hot(torch.tensor([needed]), 6).double()
    assert suffix_sums(with_none, allow_zero=True).tolist() == [[1.0] * needed + [0.0] * (5 - needed)]


def test_no_layer_may_be_needed() -> None:
    assert suffix_sums(torch.tensor([[1.0, 0.0, 0.0]]), allow_zero=True).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_begin_at_one_and_never_rise(dtype: torch.dtype) -> None:
    found = torch.randn(200, 40, dtype=dtype).mul(3).softmax(-1)
    weights = suffix_sums(found)
    assert (weights[:, 0] == 1).all()
    assert (weights.diff(dim=1) <= 0).all()
    assert weights.min() >= 0
    expected_depth = (found * torch.arange(1, 41)).sum(1)
    torch.testing.assert_close(weights.sum(1), expected_depth)


@pytest.mark.parametrize("allow_zero", [False, True])
def test_expected_depths_are_sums_of_weights(states: torch.Tensor, allow_zero: bool) -> None:
    made = predictor(allow_zero=allow_zero)
    gates = made(states, VALID)
    assert gates.weight.shape == (LAYERS - STATIC, ROWS)
    torch.testing.assert_close(made.expected, STATIC + gates.weight.sum(0))
    assert bool((gates.weight[0] == 1).all()) is not allow_zero


def test_without_sums_weights_are_the_probabilities(states: torch.Tensor) -> None:
    made = predictor(cumulative=False)
    torch.testing.assert_close(made(states, None).weight.t(), made.probabilities(states, None))
    with_none = predictor(cumulative=False, allow_zero=True)
    torch.testing.assert_close(with_none(states, None).weight.t(), with_none.probabilities(states, None)[:, 1:])


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.6, 1.0])
def test_rows_stop_at_the_first_weight_below_the_threshold(states: torch.Tensor, threshold: float) -> None:
    made = predictor()
    made.use(StructureExit(StructureExitConfig(threshold=threshold)))
    gates = made(states, VALID)
    for row, weights in enumerate(gates.weight.t().tolist()):
        expected = next((i for i, weight in enumerate(weights) if weight < threshold), len(weights))
        assert gates.depths[row] == expected >= 1
        assert [bool(gates.gate(layer).run[row]) for layer in range(5)] == [layer < expected for layer in range(5)]


def test_a_later_layer_does_not_run_again(states: torch.Tensor) -> None:
    """Without sums weights may rise behind the first that is too small."""
    made = predictor(cumulative=False)
    made.use(StructureExit(StructureExitConfig(threshold=0.15, stops="threshold")))
    gates = made(states, None)
    run = torch.stack([gates.gate(layer).run for layer in range(len(gates.weight))])
    assert (run.int().diff(dim=0) <= 0).all()
    assert ((gates.weight >= 0.15) & ~run).any()


@pytest.mark.parametrize("allow_zero", [False, True])
def test_the_likeliest_number_of_layers(states: torch.Tensor, allow_zero: bool) -> None:
    made = predictor(cumulative=False, allow_zero=allow_zero)
    made.use(StructureExit(StructureExitConfig()))
    likeliest = made.probabilities(states, None).argmax(1)
    assert torch.equal(made(states, None).depths, likeliest if allow_zero else likeliest + 1)
    summed = predictor(allow_zero=allow_zero)
    summed.use(StructureExit(StructureExitConfig(stops="argmax")))
    assert torch.equal(summed(states, None).depths, likeliest if allow_zero else likeliest + 1)


def test_one_depth_for_all_keeps_the_weights(states: torch.Tensor) -> None:
    made = predictor()
    free = made(states, None)
    made.use(FixedDepth(FixedDepthConfig(depth=4)))
    gates = made(states, None)
    assert gates.depths.tolist() == [2] * ROWS
    assert torch.equal(gates.weight, free.weight)
    assert free.depths.tolist() == [5] * ROWS


def test_nobody_stops_in_training(states: torch.Tensor) -> None:
    made = predictor().train()
    made.use(StructureExit(StructureExitConfig(threshold=1.0)))
    assert made(states, None).num_run is None
    made.eval().use(None)
    assert made(states, None).num_run is None


def test_other_policies_have_no_say() -> None:
    with pytest.raises(InputError, match="says by itself how many layers it needs; use the policy structure or fixed"):
        predictor().use(Patience(PatienceConfig(patience=2)))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (FixedDepth(FixedDepthConfig(depth=9)), "9 layers cannot run here; give a depth from"),
        (FixedDepth(FixedDepthConfig(depth=0)), "0 layers cannot run here"),
        (StructureExit(StructureExitConfig(threshold=1.5)), "1.5 is no share; give a threshold from 0 to 1"),
        (StructureExit(StructureExitConfig(threshold=float("nan"))), "nan is no share"),
    ],
)
def test_settings_out_of_range_are_refused(policy: FixedDepth | StructureExit, message: str) -> None:
    with pytest.raises(InputError, match=message):
        predictor().use(policy)


@pytest.mark.parametrize("summary", ["first", "first_tanh", "mean", "max"])
@pytest.mark.parametrize("normalized", [False, True])
def test_padding_has_no_say(states: torch.Tensor, summary: str, normalized: bool) -> None:
    made = predictor(summary=summary, normalized=normalized, hidden_width=3)
    found = made.probabilities(states, VALID)
    torch.testing.assert_close(made.probabilities(states.masked_fill(~VALID.unsqueeze(-1), 9.0), VALID), found)
    for row, length in enumerate(VALID.sum(1).tolist()):
        torch.testing.assert_close(made.probabilities(states[[row], :length], None)[0], found[row])
    left = torch.cat([torch.randn(ROWS, 1, WIDTH, dtype=torch.float64), states], 1)
    seen = torch.cat([torch.zeros(ROWS, 1, dtype=torch.bool), VALID], 1)
    torch.testing.assert_close(made.probabilities(left, seen), found)
    assert len({tuple(row) for row in found.tolist()}) == ROWS


def test_temperature_makes_it_less_certain(states: torch.Tensor) -> None:
    sure, unsure = predictor().probabilities(states, None), predictor(temperature=4.0).probabilities(states, None)
    assert (unsure.amax(1) < sure.amax(1)).all()
    torch.testing.assert_close(unsure, (sure.log() / 4).softmax(-1))


def test_half_precision_is_summed_in_full(states: torch.Tensor) -> None:
    made = predictor().bfloat16()
    assert made(states.bfloat16(), None).weight.dtype == torch.float32
