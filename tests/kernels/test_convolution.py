"""Convolutions keep their precision inside, and take batches of nothing."""

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("taps", "channels"), [(3, 8), (31, 8), (31, 128)])
@pytest.mark.parametrize(("rows", "length"), [(0, 5), (2, 0)])
def test_no_rows_and_no_steps(rows: int, length: int, taps: int, channels: int, dtype: torch.dtype) -> None:
    x, weight = torch.empty(rows, length, channels, dtype=dtype), torch.randn(2, taps, dtype=dtype)
    weight.requires_grad_()
    y = light_conv(x, weight, left=taps - 1) + dynamic_conv(x, weight.expand(rows, length, -1, -1), left=taps - 1)
    assert y.shape == x.shape
    y.sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()
