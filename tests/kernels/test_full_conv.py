"""The non-separable convolution."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from depthwise.kernels import full_conv, light_conv


@dataclass(frozen=True)
class Case:
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    left: int
    valid: Tensor | None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows, width, wide = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    taps = draw(st.one_of(st.integers(1, 8), st.just(255)))
    length = draw(st.one_of(st.integers(1, 9), st.just(min(taps, 40))))
    return Case(
        torch.randn(rows, length, width, dtype=torch.float64),
        torch.randn(wide, width, taps, dtype=torch.float64),
        torch.randn(wide, dtype=torch.float64) if draw(st.booleans()) else None,
        draw(st.sampled_from([taps - 1, (taps - 1) // 2])),
        torch.rand(rows, length) < 0.7 if draw(st.booleans()) else None,
    )


def convolve(case: Case) -> Tensor:
    """Torch's own convolution of inputs that are zero on padding."""
    x = case.x if case.valid is None else case.x * case.valid.unsqueeze(-1)
    padded = F.pad(x.transpose(1, 2), (case.left, case.weight.shape[-1] - 1 - case.left))
    return F.conv1d(padded, case.weight, case.bias).transpose(1, 2)


@given(case=cases())
def test_against_torch(case: Case, assert_same: Callable[..., None]) -> None:
    y = full_conv(case.x, case.weight, case.bias, left=case.left, valid=case.valid)
    assert_same(y, convolve(case))


@given(case=cases(), num_positions=st.integers(0, 4))
def test_some_positions(case: Case, num_positions: int, assert_same: Callable[..., None]) -> None:
    rows, length = case.x.shape[:2]
    positions = torch.randint(length, (rows, num_positions))
    y = full_conv(case.x, case.weight, case.bias, left=case.left, valid=case.valid, positions=positions)
    assert_same(y, convolve(case)[torch.arange(rows).unsqueeze(1), positions])


@given(case=cases(), data=st.data())
def test_the_last_steps(case: Case, data: st.DataObject, assert_same: Callable[..., None]) -> None:
    length = case.x.shape[1]
    count = data.draw(st.integers(0, length))
    y = full_conv(case.x, case.weight, case.bias, left=case.left, valid=case.valid, num_last=count)
    assert_same(y, convolve(case)[:, length - count :])


def test_one_number_at_a_time(assert_same: Callable[..., None]) -> None:
    x, weight = torch.randn(1, 4, 2, dtype=torch.float64), torch.randn(3, 2, 3, dtype=torch.float64)
    expected = torch.zeros(1, 4, 3, dtype=torch.float64)
    for step in range(4):
        for out in range(3):
            for tap in range(3):
                if 0 <= step - 1 + tap < 4:
                    for channel in range(2):
                        expected[0, step, out] += weight[out, channel, tap] * x[0, step - 1 + tap, channel]
    assert_same(full_conv(x, weight, left=1), expected)


def test_a_diagonal_kernel_is_a_depthwise_convolution(assert_same: Callable[..., None]) -> None:
    x, weight = torch.randn(2, 7, 5, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    diagonal = torch.diag_embed(weight.T).permute(1, 2, 0)
    for left in (1, 2):
        assert_same(full_conv(x, diagonal, left=left), light_conv(x, weight, left=left, normalization="none"))


def test_padding_is_never_seen() -> None:
    x, weight = torch.randn(2, 6, 3), torch.randn(4, 3, 3)
    valid = torch.tensor([[False, True, True, True, True, True], [True, True, False, False, True, False]])
    dirty = torch.where(valid.unsqueeze(-1), x, float("nan"))
    clean = torch.where(valid.unsqueeze(-1), x, 0.0)
    everywhere = torch.arange(6).expand(2, -1)
    for positions in (None, everywhere):
        y = full_conv(dirty, weight, left=1, valid=valid, positions=positions)
        assert torch.equal(y, full_conv(clean, weight, left=1, positions=positions))


def test_gradients_are_derivatives() -> None:
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([[True, True, False], [True, True, True]])
    for positions in (None, torch.tensor([[2, 0], [1, 1]])):
        assert torch.autograd.gradcheck(
            lambda x, weight, bias, positions=positions: full_conv(
                x, weight, bias, left=2, valid=valid, positions=positions
            ),
            (x, weight, bias),
        )
