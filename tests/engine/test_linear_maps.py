"""Linear maps of the engine: the same numbers from whatever order of weights."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from depthwise.engine import linear_maps
from depthwise.engine.linear_maps import Packer

needs_packing = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="nothing is packed here")


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many weights each matrix has that was packed."""
    found: list[int] = []
    usual: Callable[..., torch.Tensor] = torch.ops.mkldnn._reorder_linear_weight

    def seen(weight: torch.Tensor, num_rows: int) -> torch.Tensor:
        found.append(weight.numel())
        return usual(weight, num_rows)

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", seen, raising=False)
    return found


@pytest.mark.parametrize("num_rows", [1, 8])
@pytest.mark.parametrize("least", [0, 2**40])
@torch.inference_mode()
def test_every_order_gives_the_same(monkeypatch: pytest.MonkeyPatch, num_rows: int, least: int) -> None:
    monkeypatch.setattr(linear_maps, "PACKED_FROM", least)
    first, second = nn.Linear(12, 20), nn.Linear(12, 7)
    x = torch.randn(num_rows, 12)
    expected = torch.cat([first(x), second(x)], dim=-1)
    torch.testing.assert_close(Packer(num_rows)(first, second)(x), expected)


@needs_packing
@torch.inference_mode()
def test_small_matrices_are_not_packed(packings: list[int]) -> None:
    small, large = nn.Linear(256, 511), nn.Linear(256, 512)
    maps = Packer(32)(small), Packer(32)(large)
    assert packings == [256 * 512]
    x = torch.randn(4, 256)
    for each, module in zip(maps, (small, large), strict=True):
        torch.testing.assert_close(each(x), F.linear(x, module.weight, module.bias))


@pytest.mark.parametrize("num_rows", [1, 8])
@torch.inference_mode()
def test_maps_run_under_autocast(monkeypatch: pytest.MonkeyPatch, num_rows: int) -> None:
    """As validation of a training in bfloat16 does on a CPU, whose attention hands on what was rounded."""
    monkeypatch.setattr(linear_maps, "PACKED_FROM", 0)
    linear, x = nn.Linear(12, 20), torch.randn(num_rows, 12).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = Packer(num_rows)(linear)(x)
    torch.testing.assert_close(found.float(), linear(x.float()), rtol=0.02, atol=0.02)
