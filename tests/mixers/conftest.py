"""Mixers with random parameters in float64, for all tests of this folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthwise.config.model import StackConfig
from depthwise.mixers import Mixer, build_mixer


def _randomized(module: Any) -> Any:
    """Every parameter drawn anew, those that are zero or not initialised at first too; ready to be evaluated."""
    with torch.no_grad():
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


@pytest.fixture(scope="session")
def randomized() -> Callable[[Any], Any]:
    return _randomized


@pytest.fixture(scope="session")
def build() -> Callable[..., Mixer]:
    def build(mixer: str, *, width: int, causal: bool, **options: Any) -> Mixer:
        """A mixer from the options of a stack."""
        options = {"ffn_width": 5, **options}
        return _randomized(build_mixer(StackConfig(mixer=mixer, **options), 0, width=width, causal=causal))

    return build


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Tensor, Tensor], None]:
    """Equal in float64 up to the order of summation."""

    def check(actual: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)

    return check


@pytest.fixture(scope="session")
def training() -> Callable[[nn.Module], Any]:
    @contextmanager
    def training(module: nn.Module) -> Iterator[None]:
        """The module in training mode for a while."""
        module.train()
        yield
        module.eval()

    return training
