"""The non-separable convolution as a module."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from depthwise.mixers import CNN, LightConv
from depthwise.mixers.projected import ConvOptions


@pytest.mark.parametrize(("taps", "causal"), [(1, True), (3, False), (3, True), (4, True), (7, False)])
@pytest.mark.parametrize("bias", [False, True])
def test_against_torch(
    taps: int, causal: bool, bias: bool, randomized: Callable[[Any], Any], assert_same: Callable[..., None]
) -> None:
    mixer = randomized(CNN(5, taps, causal=causal, bias=bias))
    x = torch.randn(2, 6, 5, dtype=torch.float64)
    left = taps - 1 if causal else taps // 2
    expected = F.conv1d(F.pad(x.transpose(1, 2), (left, taps - 1 - left)), mixer.weight, mixer.bias)
    assert_same(mixer(x), expected.transpose(1, 2))


def test_the_bias_starts_at_zero() -> None:
    assert CNN(5, 3, causal=True).bias is None
    bias = CNN(5, 3, causal=True, bias=True).bias
    assert bias is not None
    assert torch.equal(bias, torch.zeros(5))


def test_a_diagonal_kernel_is_a_depthwise_convolution(
    randomized: Callable[[Any], Any], assert_same: Callable[..., None]
) -> None:
    depthwise = randomized(
        LightConv(ConvOptions(width=5, kernel_size=3, num_heads=5, causal=True, normalization="none"))
    )
    for projection in (depthwise.in_projection, depthwise.out_projection):
        nn.init.eye_(projection.weight)
        nn.init.zeros_(projection.bias)
    mixer = randomized(CNN(5, 3, causal=True))
    with torch.no_grad():
        mixer.weight.copy_(torch.diag_embed(depthwise.weight.T).permute(1, 2, 0))
    x = torch.randn(2, 6, 5, dtype=torch.float64)
    assert_same(mixer(x), depthwise(x))
