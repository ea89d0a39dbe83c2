"""What Triton compiled is used again where it fits, and only there."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from depthwise.kernels.triton_launch import Plan

X = torch.zeros(64)


class Kernel:
    """Stands in for one of Triton's: counts how often it was compiled, and hears how it was launched."""

    def __init__(self) -> None:
        self.num_compiled = 0
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **constants: Any) -> "Compiled":
            self.num_compiled += 1
            self.launches.append((grid, *arguments, constants))
            return Compiled(self)

        return launch


class Compiled:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments: self.kernel.launches.append((grid, *arguments))


def test_it_is_compiled_once_and_gets_its_constants_in_order() -> None:
    kernel = Kernel()
    plan = Plan(kernel, {"HEADS": 3, "TAPS": 7}, 4, 1, 1)
    for number in (5, 6):
        plan.launch(9, (X, X), (number, 32), 32)
    assert kernel.num_compiled == 1
    assert kernel.launches == [
        ((9,), X, X, 5, 32, {"HEADS": 3, "TAPS": 7, "num_warps": 4, "enable_fp_fusion": True}),
        ((9, 1, 1), X, X, 6, 32, 3, 7),
    ]


@pytest.mark.parametrize(
    ("tensors", "stride"),
    [
        ((X.half(), X), 32),
        ((X, X.half()), 32),
        ((X[1:], X), 32),
        ((X, X[1:]), 32),
        ((X[1:], X[1:]), 32),
        ((X, X), 33),
        ((X, X), 1),
        ((X[1:], X), 33),
    ],
)
def test_another_precision_or_alignment_is_compiled_by_itself(tensors: tuple[Any, ...], stride: int) -> None:
    kernel = Kernel()
    plan = Plan(kernel, {}, 4, 1, 1)
    plan.launch(1, (X, X), (32,), 32)
    for _ in range(2):
        plan.launch(1, tensors, (stride,), stride)
    assert kernel.num_compiled == 2
    plan.launch(1, (X[4:], X), (48,), 48)
    assert kernel.num_compiled == 2


def test_every_kind_of_misalignment_is_another() -> None:
    kernel = Kernel()
    plan = Plan(kernel, {}, 4, 1, 1)
    for tensors in ((X[1:], X), (X, X[1:]), (X[1:], X[1:])):
        for stride in (1, 32, 33):
            plan.launch(1, tensors, (stride,), stride)
    assert kernel.num_compiled == 9
