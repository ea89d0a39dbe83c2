"""Normalisation of kernels and DropConnect."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from depthwise.config.model import KERNEL_NORMALIZATIONS
from depthwise.kernels import normalize
from depthwise.kernels.weights import at_least_float32, drop_connect


def length(w: Tensor) -> Tensor:
    return (w * w).sum(-1, keepdim=True).sqrt()


def size(w: Tensor) -> Tensor:
    return torch.where(w < 0, -w, w).sum(-1, keepdim=True)


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda w: w,
    "softmax": lambda w: w.exp() / w.exp().sum(-1, keepdim=True),
    "sigmoid": lambda w: 1 / (1 + (-w).exp()),
    "tanh": lambda w: (w.exp() - (-w).exp()) / (w.exp() + (-w).exp()),
    "l1": lambda w: w / (size(w) + 1e-6),
    "l2": lambda w: w / (length(w) + 1e-6),
    "square": lambda w: w * w,
    "abs": lambda w: torch.where(w < 0, -w, w),
    "abs_l1": lambda w: torch.where(w < 0, -w, w) / (size(w) + 1e-6),
    "abs_l2": lambda w: torch.where(w < 0, -w, w) / (length(w) + 1e-6),
}

kinds = pytest.mark.parametrize("kind", KERNEL_NORMALIZATIONS)


def test_every_normalisation_has_a_formula_here() -> None:
    assert set(FORMULAS) == set(KERNEL_NORMALIZATIONS)


@kinds
@pytest.mark.parametrize("scale", [1.0, 1e-6], ids=["ordinary", "as small as epsilon"])
@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 4, 5), (3, 1)], ids=str)
def test_normalisation_follows_its_formula(kind: str, scale: float, shape: tuple[int, ...]) -> None:
    weight = scale * torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(normalize(weight, kind), FORMULAS[kind](weight), rtol=1e-9, atol=1e-13)


@kinds
def test_a_kernel_of_zeros_stays_finite(kind: str) -> None:
    weight = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    normalized = normalize(weight, kind)
    (gradient,) = torch.autograd.grad(normalized.sum(), weight)
    assert normalized.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "tanh", "l1", "l2", "abs_l1", "abs_l2"])
def test_huge_weights_stay_finite(kind: str) -> None:
    normalized = normalize(torch.tensor([[1e30, -1e30, 3e4]], dtype=torch.float64), kind)
    assert normalized.isfinite().all()
    assert (normalized.abs() <= 1).all()


@pytest.mark.parametrize("taps", [1, 2, 7, 15, 16, 17])
@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_softmax_of_many_short_kernels(taps: int, scale: float) -> None:
    """Rows that are filled up give what a softmax of their own gives, and so do gradients."""
    weight = (scale * torch.randn(30, 20, taps)).requires_grad_()
    above = torch.randn(30, 20, taps)
    expected, found = weight.double().softmax(-1), normalize(weight, "softmax")
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7)
    (gradient,) = torch.autograd.grad(found, weight, above)
    (of_expected,) = torch.autograd.grad(expected, weight, above.double())
    torch.testing.assert_close(gradient, of_expected, rtol=1e-4, atol=1e-6)


@kinds
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_normalised_in_float32(kind: str, dtype: torch.dtype) -> None:
    weight = torch.randn(3, 5).to(dtype)
    normalized = normalize(weight, kind)
    assert normalized.dtype == torch.float32
    assert torch.equal(normalized, normalize(weight.float(), kind))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precision_is_kept(dtype: torch.dtype) -> None:
    x = torch.randn(3, dtype=dtype)
    assert at_least_float32(x) is x
    assert all(normalize(x, kind).dtype == dtype for kind in KERNEL_NORMALIZATIONS)


def test_a_normalisation_that_validation_let_through() -> None:
    with pytest.raises(AssertionError, match="unchecked kernel normalisation loud"):
        normalize(torch.ones(1, 1), "loud")


# DropConnect


@pytest.mark.parametrize("shared", [False, True])
def test_nothing_dropped_is_the_weight_itself(shared: bool) -> None:
    weight = torch.randn(2, 3, 4, 5)
    assert drop_connect(weight, 0.0, shared=shared) is weight


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.8])
def test_an_entry_is_dropped_or_scaled_up(shared: bool, probability: float) -> None:
    """Without renormalising: the kept ones are divided by 1 - p and by nothing else."""
    weight = torch.rand(5, 6, 3, 7, dtype=torch.float64) + 0.5
    dropped = drop_connect(weight, probability, shared=shared)
    mask = dropped / weight * (1 - probability)
    kept = mask > 0.5
    torch.testing.assert_close(mask, kept.double(), rtol=0, atol=1e-12)
    assert kept.any()
    assert not kept.all()


def test_each_leading_index_draws_its_own_mask() -> None:
    kept = drop_connect(torch.ones(4, 50, 2, 3), 0.5, shared=False) > 0
    assert not torch.equal(kept, kept[:1].expand_as(kept))
    assert not torch.equal(kept, kept[:, :1].expand_as(kept))
    assert not torch.equal(kept, kept[:, :, :1].expand_as(kept))
    assert not torch.equal(kept, kept[..., :1].expand_as(kept))


def test_a_shared_mask_is_drawn_per_head_and_tap() -> None:
    kept = drop_connect(torch.ones(4, 50, 6, 7), 0.5, shared=True) > 0
    assert torch.equal(kept, kept[:1, :1].expand_as(kept))
    assert not torch.equal(kept, kept[:, :, :1].expand_as(kept))
    assert not torch.equal(kept, kept[..., :1].expand_as(kept))


def test_a_fixed_kernel_is_expanded_before_it_is_dropped() -> None:
    kernel = torch.ones(1, 1, 2, 3)
    kept = drop_connect(kernel, 0.5, shared=False, rows=(4, 50)) > 0
    assert kept.shape == (4, 50, 2, 3)
    assert not torch.equal(kept, kept[:1].expand_as(kept))
    assert not torch.equal(kept, kept[:, :1].expand_as(kept))
    assert drop_connect(kernel, 0.5, shared=True, rows=(4, 50)).shape == (1, 1, 2, 3)


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_pass_through_the_kept_entries(shared: bool) -> None:
    weight = torch.rand(2, 3, 4, 5, dtype=torch.float64) + 0.5
    weight.requires_grad_()
    dropped = drop_connect(weight, 0.5, shared=shared)
    (gradient,) = torch.autograd.grad(dropped.sum(), weight)
    torch.testing.assert_close(gradient, dropped.detach() / weight.detach(), rtol=0, atol=1e-12)
