"""The arithmetic of convolutions in its plainest form, for all tests of this folder."""

from collections.abc import Callable, Iterator

import jaxtyping
import pytest
import torch
from torch import Tensor


def _sum_over_taps(x: Tensor, weight: Tensor, left: int, positions: Tensor | None = None) -> Tensor:
    """y[b, p, c] = sum_k weight[b, p, c // (C / H), k] * x[b, t(p) - left + k, c], one number at a time."""
    rows, length, channels = x.shape
    if positions is None:
        positions = torch.arange(length).expand(rows, -1)
    heads, taps = weight.shape[-2:]
    inputs = x.double().tolist()
    kernels = weight.double().expand(*positions.shape, heads, taps).tolist()
    output = torch.zeros(*positions.shape, channels, dtype=torch.float64)
    for row, steps in enumerate(positions.tolist()):
        for place, step in enumerate(steps):
            for channel in range(channels):
                kernel = kernels[row][place][channel * heads // channels]
                total = 0.0
                for tap in range(taps):
                    if 0 <= step - left + tap < length:
                        total += kernel[tap] * inputs[row][step - left + tap][channel]
                output[row, place, channel] = total
    return output


@pytest.fixture(scope="session")
def sum_over_taps() -> Callable[..., Tensor]:
    return _sum_over_taps


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Tensor, Tensor], None]:
    """Equal in float64 up to the order of summation."""

    def check(actual: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)

    return check


@pytest.fixture
def _unchecked_shapes() -> Iterator[None]:
    """Without the checks of shapes that the tests put around every function: what users and compilers see."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
