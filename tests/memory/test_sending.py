"""What the host sends is what a device gets, and no thread of torch takes part in that."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from depthwise.memory import send_into, sending, sent


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(0,), (), (3, 5), (7, 0, 2)])
def test_staged_is_the_same(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    made = (10 * torch.rand(shape)).to(dtype).requires_grad_(dtype == torch.float32)
    monkeypatch.setattr(sending.torch, "empty", partial(_empty, torch.empty))
    there = sending.staged(made)
    assert there.dtype == dtype
    assert there.is_contiguous()
    assert torch.equal(there, made)
    assert there.data_ptr() != made.data_ptr() or made.numel() == 0


def test_staged_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending.torch, "empty", partial(_empty, torch.empty))
    made = torch.arange(12).view(3, 4).t()
    assert torch.equal(sending.staged(made), made)


def _empty(empty: Callable[..., Tensor], *arguments: Any, pin_memory: bool, **options: Any) -> Tensor:
    """Memory that stays needs a GPU."""
    assert pin_memory
    return empty(*arguments, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.bfloat16, torch.float32])
def test_a_gpu_gets_what_was_sent(dtype: torch.dtype) -> None:
    device, made = torch.device("cuda"), (10 * torch.rand(300, 200)).to(dtype)
    assert torch.equal(sent(made, device).cpu(), made)


@pytest.mark.gpu
def test_a_table_on_a_gpu_gets_what_was_sent() -> None:
    table, made = torch.zeros(4, 50_000, dtype=torch.long, device="cuda"), np.arange(200_000).reshape(4, -1)
    send_into(table, made)
    assert (table.cpu().numpy() == made).all()
