"""Label smoothing against targets that are written out in full."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from depthwise.errors import InputError
from depthwise.losses import IGNORED, label_smoothed_cross_entropy, token_cross_entropy

LABELS = torch.tensor([[1, IGNORED, 0], [2, 2, IGNORED]])
NUM_TYPES = 5


def scores(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, 3, NUM_TYPES, dtype=dtype).requires_grad_()


def dense(logits: Tensor, labels: Tensor, smoothing: float, over_others: bool) -> Tensor:
    """Cross-entropy against (1 − ε)·one-hot + ε·uniform, built as a tensor, summed over labels that count."""
    kept = labels != IGNORED
    one_hot = F.one_hot(labels[kept], NUM_TYPES).to(logits.dtype)
    uniform = (1 - one_hot) / (NUM_TYPES - 1) if over_others else torch.full_like(one_hot, 1 / NUM_TYPES)
    target = (1 - smoothing) * one_hot + smoothing * uniform
    torch.testing.assert_close(target.sum(-1), torch.ones(4, dtype=logits.dtype))
    return -(target * logits[kept].log_softmax(-1)).sum()


@pytest.mark.parametrize("over_others", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize(("num_items", "divisor"), [(None, 4), (7, 7), (torch.tensor(7), 7)])
def test_loss_and_gradient_of_dense_targets(
    smoothing: float, over_others: bool, num_items: Tensor | int | None, divisor: int
) -> None:
    logits = scores()
    found = label_smoothed_cross_entropy(logits, LABELS, smoothing, num_items, over_others=over_others)
    expected = dense(logits, LABELS, smoothing, over_others) / divisor
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in (found.loss, expected)))


def test_gradients_are_those_of_finite_differences() -> None:
    for over_others in (False, True):
        torch.autograd.gradcheck(
            lambda logits, flag=over_others: label_smoothed_cross_entropy(logits, LABELS, 0.3, over_others=flag).loss,
            scores(),
        )


def test_over_all_types_is_that_of_torch() -> None:
    logits = scores()
    expected = F.cross_entropy(logits.flatten(0, 1), LABELS.flatten(), ignore_index=IGNORED, label_smoothing=0.1)
    torch.testing.assert_close(label_smoothed_cross_entropy(logits, LABELS, 0.1).loss, expected)


@pytest.mark.parametrize("over_others", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_without_smoothing_it_is_cross_entropy(dtype: torch.dtype, over_others: bool) -> None:
    """Exactly, gradients included, also where a type is impossible."""
    logits = scores(dtype)
    masked = logits.masked_fill(torch.arange(NUM_TYPES) == 4, -torch.inf)
    found = label_smoothed_cross_entropy(masked, LABELS, 0.0, 3, over_others=over_others).loss
    expected = token_cross_entropy(masked, LABELS, 3)
    assert torch.equal(found, expected)
    assert found.isfinite()
    assert torch.equal(*(torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (found, expected)))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_plain_likelihood_comes_along(smoothing: float) -> None:
    found = label_smoothed_cross_entropy(scores(), LABELS, smoothing, 7)
    torch.manual_seed(0)
    torch.testing.assert_close(found.nll_sum, token_cross_entropy(scores(), LABELS, 1).detach())
    assert found.num_tokens == 4
    assert not found.nll_sum.requires_grad


def test_half_precision_is_computed_in_float32() -> None:
    logits = scores(torch.bfloat16)
    found = label_smoothed_cross_entropy(logits, LABELS, 0.1)
    assert found.loss.dtype == found.nll_sum.dtype == torch.float32
    assert torch.equal(found.loss, label_smoothed_cross_entropy(logits.float(), LABELS, 0.1).loss)


@pytest.mark.parametrize("over_others", [False, True])
def test_micro_batches_add_up(over_others: bool) -> None:
    logits = scores()
    whole = label_smoothed_cross_entropy(logits, LABELS, 0.1, over_others=over_others).loss
    parts = [
        label_smoothed_cross_entropy(logits[row : row + 1], LABELS[row : row + 1], 0.1, 4, over_others=over_others).loss
        for row in range(2)
    ]
    torch.testing.assert_close(sum(parts), whole)


def test_without_labels_it_is_zero() -> None:
    logits = scores()
    found = label_smoothed_cross_entropy(logits, torch.full((2, 3), IGNORED), 0.1)
    assert found.loss == found.nll_sum == found.num_tokens == 0
    assert not torch.autograd.grad(found.loss, logits)[0].any()


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_bad_smoothing(smoothing: float) -> None:
    with pytest.raises(InputError, match=f"^label smoothing is a share from 0 .*; {smoothing} is none$"):
        label_smoothed_cross_entropy(scores(), LABELS, smoothing)


def test_no_other_type() -> None:
    with pytest.raises(InputError, match=r"needs a vocabulary of at least two$"):
        label_smoothed_cross_entropy(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), 0.1, over_others=True)


def test_labels_outside_the_vocabulary() -> None:
    with pytest.raises(InputError, match="holds 5"):
        label_smoothed_cross_entropy(scores(), torch.full((2, 3), NUM_TYPES), 0.1)
