"""Light convolution as a special case, and its special cases."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from depthwise.kernels import light_conv


@pytest.mark.parametrize(("taps", "left"), [(1, 0), (3, 1), (3, 2), (4, 3), (31, 15), (32, 31), (255, 127)])
def test_one_head_per_channel_without_normalisation_is_a_depthwise_convolution(
    taps: int, left: int, assert_same: Callable[..., None]
) -> None:
    x, weight = torch.randn(2, 9, 6, dtype=torch.float64), torch.randn(6, taps, dtype=torch.float64)
    padded = F.pad(x.transpose(1, 2), (left, taps - 1 - left))
    expected = F.conv1d(padded, weight.unsqueeze(1), groups=6).transpose(1, 2)
    assert_same(light_conv(x, weight, left=left, normalization="none"), expected)


def test_one_head_per_channel_with_softmax(assert_same: Callable[..., None]) -> None:
    x, weight = torch.randn(2, 9, 6, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    expected = F.conv1d(x.transpose(1, 2), weight.softmax(1).unsqueeze(1), groups=6, padding=1).transpose(1, 2)
    assert_same(light_conv(x, weight, left=1), expected)


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_the_last_steps(count: int, assert_same: Callable[..., None]) -> None:
    x, weight = torch.randn(2, 9, 6, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    everywhere = light_conv(x, weight, left=3)
    assert_same(light_conv(x, weight, left=3, num_last=count), everywhere[:, 9 - count :])


def test_positions_come_before_the_last_steps(assert_same: Callable[..., None]) -> None:
    x, weight = torch.randn(1, 9, 6, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    positions = torch.tensor([[7, 0]])
    y: Tensor = light_conv(x, weight, left=3, positions=positions, num_last=2)
    assert_same(y, light_conv(x, weight, left=3)[:, [7, 0]])
