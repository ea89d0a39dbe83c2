"""Plans and gates as values."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depthwise.depth import Gate, Plan
from depthwise.errors import InputError


def test_depths_are_prefixes() -> None:
    plan = Plan.of_depths(torch.tensor([[0, 1, 3]]), 3)
    assert plan.run.tolist() == [[[False, True, True]], [[False, False, True]], [[False, False, True]]]
    assert plan.weight is None


@given(depths=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_depths_come_back(depths: list[int]) -> None:
    plan = Plan.of_depths(torch.tensor([depths]), 4)
    assert plan.run.shape == (4, 1, len(depths))
    assert plan.depths.tolist() == [depths]
    assert plan.num_layers_needed() == max(depths)


def test_depth_counts_the_blocks_of_a_subset() -> None:
    run = torch.tensor([[[True, False]], [[False, False]], [[True, True]], [[False, False]]])
    plan = Plan(run)
    assert plan.depths.tolist() == [[2, 1]]
    assert plan.num_layers_needed() == 3


def test_nobody_needs_a_layer() -> None:
    assert Plan(torch.zeros(3, 2, 2, dtype=torch.bool)).num_layers_needed() == 0


@pytest.mark.parametrize(("lowest", "highest"), [(-1, 2), (0, 4), (-3, 9)])
def test_depths_outside_the_stack(lowest: int, highest: int) -> None:
    with pytest.raises(InputError) as raised:
        Plan.of_depths(torch.tensor([[lowest, 1], [highest, 2]]), 3)
    expected = f"depths go from 0 (padding) to 3, the number of layers; found {lowest} to {highest}"
    assert str(raised.value) == expected


def test_the_gate_of_a_layer() -> None:
    run, weight = torch.rand(3, 2, 4) < 0.5, torch.rand(3, 2, 4)
    gate = Plan(run, weight).gate(1)
    assert torch.equal(gate.run, run[1])
    assert torch.equal(gate.weight, weight[1])
    assert Plan(run).gate(2).weight is None


def test_a_gate_may_be_empty() -> None:
    assert Gate() == Gate(run=None, weight=None)
