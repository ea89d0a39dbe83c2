"""Convolutions keep their precision inside."""

import pytest
import torch

from depthwise.kernels import dynamic_conv, light_conv


@pytest.mark.parametrize("taps", [3, 31])
def test_float32_inside_also_under_autocast(taps: int) -> None:
    """Matrix products and convolutions would else be done in bfloat16, but sums over taps would not."""
    x, weight, logits = torch.randn(2, 40, 64), torch.randn(2, taps), torch.randn(2, 40, 2, taps)
    plain = light_conv(x, weight, left=taps - 1), dynamic_conv(x, logits, left=taps - 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = light_conv(x, weight, left=taps - 1), dynamic_conv(x, logits, left=taps - 1)
    for one, other in zip(mixed, plain, strict=True):
        assert torch.equal(one, other)
