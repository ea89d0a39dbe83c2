"""A back end that was asked for by name runs or raises; nothing takes its place."""

import re

import pytest
import torch

from depthwise.errors import BackendUnavailable
from depthwise.kernels import BACKENDS, dynamic_conv, light_conv, pick

MESSAGE = f'there is no kernel back end "abacus" in this version; use one of {", ".join(BACKENDS)}'
X = torch.ones(1, 2, 2)


def test_the_reference_is_always_there() -> None:
    assert pick("reference") == "reference"


def test_auto_takes_one_that_exists() -> None:
    assert pick("auto") in BACKENDS


def test_an_unknown_back_end() -> None:
    with pytest.raises(BackendUnavailable, match=f"^{re.escape(MESSAGE)}$"):
        pick("abacus")


def test_light_conv_with_an_unknown_back_end() -> None:
    with pytest.raises(BackendUnavailable, match=re.escape(MESSAGE)):
        light_conv(X, torch.ones(1, 1), left=0, backend="abacus")


def test_dynamic_conv_with_an_unknown_back_end() -> None:
    with pytest.raises(BackendUnavailable, match=re.escape(MESSAGE)):
        dynamic_conv(X, torch.ones(1, 2, 1, 1), left=0, backend="abacus")


def test_a_forced_back_end_gives_what_auto_gives() -> None:
    x, weight, logits = torch.randn(2, 5, 4), torch.randn(2, 3), torch.randn(2, 5, 2, 3)
    assert torch.equal(light_conv(x, weight, left=1, backend="reference"), light_conv(x, weight, left=1))
    assert torch.equal(dynamic_conv(x, logits, left=1, backend="reference"), dynamic_conv(x, logits, left=1))
