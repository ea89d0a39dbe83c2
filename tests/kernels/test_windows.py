"""Which positions read, and how much of their kernels lies on real tokens."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from depthwise.kernels.windows import covered_mass, trailing

X = torch.zeros(2, 5, 6)


def test_given_positions_are_taken() -> None:
    positions = torch.tensor([[1, 4, 1], [0, 2, 3]])
    assert trailing(X, positions, None) is positions
    assert trailing(X, positions, 3) is positions


@pytest.mark.parametrize("num_last", [None, 5])
def test_every_step_needs_no_list(num_last: int | None) -> None:
    assert trailing(X, None, num_last) is None


@pytest.mark.parametrize(("num_last", "expected"), [(0, []), (1, [4]), (3, [2, 3, 4])])
def test_the_last_steps(num_last: int, expected: list[int]) -> None:
    positions = trailing(X, None, num_last)
    assert positions is not None
    assert positions.tolist() == [expected, expected]


@pytest.mark.parametrize("positions", [None, torch.tensor([[4, 0], [2, 3]])], ids=["all", "some"])
@pytest.mark.parametrize("heads", [1, 2, 6])
def test_mass_on_real_tokens(
    positions: Tensor | None, heads: int, sum_over_taps: Callable[..., Tensor], assert_same: Callable[..., None]
) -> None:
    valid = torch.tensor([[False, True, True, False, True], [True, False, False, False, True]])
    kernel = torch.rand(2, 5 if positions is None else 2, heads, 3, dtype=torch.float64)
    mass = covered_mass(X.double(), kernel, 1, valid, positions)
    real = valid.double().unsqueeze(-1).expand(-1, -1, 6)
    expected = sum_over_taps(real, kernel, 1, positions)
    assert_same(mass, torch.where(expected == 0, 1.0, expected))


def test_mass_without_padding(sum_over_taps: Callable[..., Tensor], assert_same: Callable[..., None]) -> None:
    kernel = torch.rand(1, 1, 2, 4, dtype=torch.float64)
    mass = covered_mass(X.double(), kernel, 3, None, None)
    assert_same(mass, sum_over_taps(torch.ones_like(X), kernel, 3))


def test_mass_is_one_where_there_is_no_real_token() -> None:
    valid = torch.tensor([[False, False, False, False, True]] * 2)
    mass = covered_mass(X.double(), torch.rand(1, 1, 2, 3, dtype=torch.float64), 2, valid, None)
    assert torch.equal(mass[:, :4], torch.ones(2, 4, 6, dtype=torch.float64))
