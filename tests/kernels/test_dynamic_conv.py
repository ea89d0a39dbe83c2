"""Dynamic convolution as a special case, and its special cases."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depthwise.config.model import KERNEL_NORMALIZATIONS
from depthwise.kernels import dynamic_conv, light_conv


@given(
    taps=st.one_of(st.integers(1, 9), st.sampled_from([17, 255])),
    length=st.integers(1, 12),
    heads=st.sampled_from([1, 2, 3, 6]),
    kind=st.sampled_from(KERNEL_NORMALIZATIONS),
    centred=st.booleans(),
)
def test_equal_kernels_at_all_positions_are_a_light_convolution(
    taps: int, length: int, heads: int, kind: str, centred: bool, assert_same: Callable[..., None]
) -> None:
    x, weight = torch.randn(2, length, 6, dtype=torch.float64), torch.randn(heads, taps, dtype=torch.float64)
    left = (taps - 1) // 2 if centred else taps - 1
    valid = torch.rand(2, length) < 0.7
    logits = weight.expand(2, length, -1, -1)
    y = dynamic_conv(x, logits, left=left, valid=valid, normalization=kind)
    assert_same(y, light_conv(x, weight, left=left, valid=valid, normalization=kind))


def test_a_position_uses_its_own_kernel(assert_same: Callable[..., None]) -> None:
    """A peaked kernel picks one step: position t of row b looks back by what its logits say."""
    x = torch.randn(2, 4, 2, dtype=torch.float64)
    back = torch.tensor([[0, 1, 0, 2], [0, 0, 2, 1]])
    logits = torch.full((2, 4, 1, 3), -1e3, dtype=torch.float64)
    logits.scatter_(3, (2 - back)[..., None, None], 1e3)
    source = (torch.arange(4) - back).unsqueeze(-1).expand_as(x)
    assert_same(dynamic_conv(x, logits, left=2), x.gather(1, source))


@pytest.mark.parametrize("taps", [3, 20])
def test_fewer_kernels_than_steps_belong_to_the_last(taps: int, assert_same: Callable[..., None]) -> None:
    x, logits = torch.randn(2, 7, 4, dtype=torch.float64), torch.randn(2, 7, 2, taps, dtype=torch.float64)
    everywhere = dynamic_conv(x, logits, left=taps - 1)
    for count in range(8):
        assert_same(dynamic_conv(x, logits[:, 7 - count :], left=taps - 1), everywhere[:, 7 - count :])
