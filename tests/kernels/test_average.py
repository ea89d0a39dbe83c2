"""Running means: a triangular matrix of equal weights, or a running sum."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from depthwise.kernels import running_mean


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor | None]:
    """Inputs and their validity: none, any pattern of padding, or nothing real at all."""
    rows, length = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    torch.manual_seed(draw(st.integers(0, 99)))
    kind = draw(st.sampled_from(["none", "any", "left", "right", "all"]))
    steps, lost = torch.arange(length), torch.randint(length + 1, (rows, 1))
    valid = {
        "none": None,
        "any": torch.rand(rows, length) < 0.6,
        "left": steps >= lost,
        "right": steps < length - lost,
        "all": torch.zeros(rows, length, dtype=torch.bool),
    }[kind]
    return torch.randn(rows, length, 3, dtype=torch.float64), valid


def weights(x: Tensor, valid: Tensor | None, causal: bool) -> Tensor:
    """Row t holds 1 / n at the n real tokens that t sees; zeros where there are none."""
    rows, length = x.shape[:2]
    real = torch.ones(rows, length) if valid is None else valid.double()
    seen = torch.ones(length, length).tril() if causal else torch.ones(length, length)
    seen = seen.double() * real.unsqueeze(1)
    return seen / seen.sum(-1, keepdim=True).clamp(min=1)


@given(batch=batches(), causal=st.booleans())
def test_against_a_matrix_product(
    batch: tuple[Tensor, Tensor | None], causal: bool, assert_same: Callable[..., None]
) -> None:
    x, valid = batch
    assert_same(running_mean(x, causal=causal, valid=valid), weights(x, valid, causal) @ x)


def test_causal_weights_are_a_uniform_lower_triangle(assert_same: Callable[..., None]) -> None:
    x = torch.eye(4, dtype=torch.float64).unsqueeze(0)
    expected = [[1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [1 / 4, 1 / 4, 1 / 4, 1 / 4]]
    assert_same(running_mean(x, causal=True)[0], torch.tensor(expected, dtype=torch.float64))


def test_centred_is_the_mean_of_real_tokens(assert_same: Callable[..., None]) -> None:
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    valid = torch.tensor([[True, True, False, True], [False, False, True, False]])
    y = running_mean(x, causal=False, valid=valid)
    assert_same(y, torch.stack([x[0, [0, 1, 3]].mean(0), x[1, 2]]).unsqueeze(1).expand_as(x))


@given(batch=batches(), causal=st.booleans(), num_positions=st.integers(0, 4))
def test_some_positions(
    batch: tuple[Tensor, Tensor | None], causal: bool, num_positions: int, assert_same: Callable[..., None]
) -> None:
    x, valid = batch
    rows, length = x.shape[:2]
    positions = torch.randint(length, (rows, num_positions))
    everywhere = running_mean(x, causal=causal, valid=valid)
    y = running_mean(x, causal=causal, valid=valid, positions=positions)
    assert_same(y, everywhere[torch.arange(rows).unsqueeze(1), positions])
    for count in (0, 1, length):
        last = running_mean(x, causal=causal, valid=valid, num_last=count)
        assert_same(last, everywhere[:, length - count :])


@given(batch=batches(), causal=st.booleans(), data=st.data())
def test_what_came_before(
    batch: tuple[Tensor, Tensor | None], causal: bool, data: st.DataObject, assert_same: Callable[..., None]
) -> None:
    """A sum and a number stand for the earlier tokens."""
    x, valid = batch
    cut = data.draw(st.integers(0, x.shape[1] - 1))
    real = (torch.ones(x.shape[:2]) if valid is None else valid).double()
    before = ((x * real.unsqueeze(-1))[:, :cut].sum(1), real[:, :cut].sum(1, keepdim=True))
    later = running_mean(x[:, cut:], causal=causal, valid=None if valid is None else valid[:, cut:], before=before)
    assert_same(later, running_mean(x, causal=causal, valid=valid)[:, cut:])


def test_padding_is_never_seen() -> None:
    x = torch.randn(2, 5, 3)
    valid = torch.tensor([[False, True, True, False, True], [True, True, False, False, False]])
    dirty = torch.where(valid.unsqueeze(-1), x, float("nan"))
    for causal in (False, True):
        y = running_mean(dirty, causal=causal, valid=valid)
        assert torch.equal(y, running_mean(x, causal=causal, valid=valid))
        assert y.isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, causal: bool) -> None:
    x = torch.randn(2, 300, 3).to(dtype) + 10
    y = running_mean(x, causal=causal)
    assert y.dtype == dtype
    assert torch.equal(y, running_mean(x.float(), causal=causal).to(dtype))


def test_half_precision_may_follow_a_sum_in_float32() -> None:
    before = (torch.full((1, 2), 5.0), torch.full((1, 1), 4.0))
    y = running_mean(torch.ones(1, 1, 2, dtype=torch.bfloat16), causal=True, before=before)
    assert torch.equal(y, torch.full((1, 1, 2), 6 / 5, dtype=torch.bfloat16))


def test_gradients_are_derivatives() -> None:
    x = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([[True, True, False, True], [False, True, True, True]])
    for causal in (False, True):
        assert torch.autograd.gradcheck(lambda x, causal=causal: running_mean(x, causal=causal, valid=valid), (x,))
