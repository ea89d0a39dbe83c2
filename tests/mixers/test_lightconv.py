"""Light convolution as a module."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from depthwise.mixers import LightConv
from depthwise.mixers.projected import ConvOptions


@pytest.mark.parametrize(("taps", "causal"), [(1, True), (3, False), (4, True), (7, False), (31, True)])
def test_one_head_per_channel_without_normalisation_is_a_depthwise_convolution(
    taps: int, causal: bool, randomized: Callable[[Any], Any], assert_same: Callable[..., None]
) -> None:
    mixer = randomized(
        LightConv(ConvOptions(width=6, kernel_size=taps, num_heads=6, causal=causal, normalization="none"))
    )
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    left = taps - 1 if causal else taps // 2
    inputs = F.pad(mixer.in_projection(x).transpose(1, 2), (left, taps - 1 - left))
    mixed = F.conv1d(inputs, mixer.weight.unsqueeze(1), groups=6).transpose(1, 2)
    assert_same(mixer(x), mixer.out_projection(mixed))


def test_a_constant_stays_constant_inside(randomized: Callable[[Any], Any], assert_same: Callable[..., None]) -> None:
    """Softmax kernels sum to 1, so that with identities around it the module copies what does not change."""
    mixer = randomized(LightConv(ConvOptions(width=4, kernel_size=3, num_heads=2, causal=False)))
    for projection in (mixer.in_projection, mixer.out_projection):
        nn.init.eye_(projection.weight)
        nn.init.zeros_(projection.bias)
    x = torch.randn(4, dtype=torch.float64).expand(2, 6, 4)
    assert_same(mixer(x)[:, 1:-1], x[:, 1:-1])
    assert not torch.allclose(mixer(x)[:, 0], x[:, 0])


@pytest.mark.parametrize(("heads", "taps"), [(64, 31), (300, 3)])
def test_the_bound_of_the_initialisation(heads: int, taps: int) -> None:
    """That of Xavier-uniform on (heads, 1, taps), as torch draws it."""
    mixer = LightConv(ConvOptions(width=heads, kernel_size=taps, num_heads=heads, causal=True))
    drawn = nn.init.xavier_uniform_(torch.empty(heads, 1, taps)).abs().max()
    assert 0.95 * mixer.weight_bound < drawn <= mixer.weight_bound * (1 + 1e-6)
