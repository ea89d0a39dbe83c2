"""Losses: sums over items, divided by how many there are."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from depthwise.errors import InputError
from depthwise.losses import IGNORED, classification_loss, summed_over_items, token_cross_entropy

LABELS = torch.tensor([[1, IGNORED, 0], [2, 2, IGNORED]])


def scores(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of every label that counts, one by one."""
    counted = [(row, step) for row, step in (labels != IGNORED).nonzero().tolist()]
    return torch.stack([-logits[row, step].log_softmax(-1)[labels[row, step]] for row, step in counted])


def test_without_a_count_it_is_a_mean_over_the_labels_that_count() -> None:
    logits = scores(2, 3, 5)
    torch.testing.assert_close(token_cross_entropy(logits, LABELS), by_hand(logits, LABELS).mean())


@pytest.mark.parametrize("count", [7, torch.tensor(7), torch.tensor(7.0)], ids=["number", "whole", "float"])
def test_with_a_count_it_is_the_sum_divided_by_it(count: Tensor | int) -> None:
    logits = scores(2, 3, 5)
    torch.testing.assert_close(token_cross_entropy(logits, LABELS, count), by_hand(logits, LABELS).sum() / 7)


@pytest.mark.parametrize("count", [None, 0, 3, torch.tensor(0)])
def test_without_labels_it_is_zero(count: Tensor | int | None) -> None:
    """And so are its gradients: no NaN where a micro-batch has nothing to learn from."""
    logits = scores(2, 3, 5).requires_grad_()
    loss = token_cross_entropy(logits, torch.full((2, 3), IGNORED), count)
    assert loss == 0
    loss.backward()
    assert not logits.grad.any()


def test_without_steps_it_is_zero() -> None:
    assert token_cross_entropy(scores(2, 0, 5), torch.zeros(2, 0, dtype=torch.long)) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    logits = scores(2, 3, 5).to(dtype)
    loss = token_cross_entropy(logits, LABELS)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, token_cross_entropy(logits.float(), LABELS), rtol=0, atol=0)


def test_micro_batches_add_up() -> None:
    """Each divides by the count of all, so that their losses and gradients sum to those of one batch."""
    logits = scores(2, 3, 5).requires_grad_()
    total = (LABELS != IGNORED).sum()
    whole = torch.autograd.grad(token_cross_entropy(logits, LABELS), logits)[0]
    parts = sum(token_cross_entropy(logits[row : row + 1], LABELS[row : row + 1], total) for row in range(2))
    torch.testing.assert_close(torch.autograd.grad(parts, logits)[0], whole)


def test_a_sum_over_items() -> None:
    assert summed_over_items(torch.tensor(6.0), None, 3) == 2
    assert summed_over_items(torch.tensor(6.0), 4, 3) == 1.5
    assert summed_over_items(torch.tensor(0.0), None, 0) == 0


# Whole sequences


def test_one_label_of_several() -> None:
    logits, labels = scores(3, 4), torch.tensor([1, 0, 3])
    loss = classification_loss(logits, labels, "single_label_classification")
    torch.testing.assert_close(loss, -logits.log_softmax(-1)[range(3), labels].mean())
    halved = classification_loss(logits, labels, "single_label_classification", 6)
    torch.testing.assert_close(halved, loss / 2)


def test_several_labels() -> None:
    logits, labels = scores(3, 4), torch.randint(0, 2, (3, 4)).double()
    loss = classification_loss(logits, labels, "multi_label_classification")
    terms = -(labels * F.logsigmoid(logits) + (1 - labels) * F.logsigmoid(-logits))
    torch.testing.assert_close(loss, terms.mean())
    torch.testing.assert_close(classification_loss(logits, labels, "multi_label_classification", 24), loss / 2)


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_regression(shape: tuple[int, ...]) -> None:
    logits, labels = scores(3, 1), torch.randn(shape, dtype=torch.float64)
    loss = classification_loss(logits, labels, "regression")
    torch.testing.assert_close(loss, (logits.flatten() - labels.flatten()).square().mean())
    torch.testing.assert_close(classification_loss(logits, labels, "regression", 6), loss / 2)


def test_regression_on_whole_numbers() -> None:
    logits = scores(2, 1)
    loss = classification_loss(logits, torch.tensor([1, 3]), "regression")
    torch.testing.assert_close(loss, (logits.flatten() - torch.tensor([1.0, 3.0])).square().mean())


def test_regression_skips_rows_without_a_number() -> None:
    logits = torch.tensor([[1.0], [5.0], [2.0]], requires_grad=True)
    loss = classification_loss(logits, torch.tensor([0.0, float("nan"), 4.0]), "regression")
    loss.backward()
    assert loss.item() == (1 + 4) / 2
    assert logits.grad is not None
    assert logits.grad.tolist() == [[1.0], [0.0], [-2.0]]


def test_regression_skips_such_rows_whatever_was_predicted() -> None:
    logits = torch.tensor([[1.0], [float("inf")]], requires_grad=True)
    loss = classification_loss(logits, torch.tensor([0.0, float("nan")]), "regression")
    loss.backward()
    assert loss.item() == 1
    assert logits.grad is not None
    assert logits.grad.tolist() == [[2.0], [0.0]]


# What cannot be


@pytest.mark.parametrize("label", [-1, 5])
def test_labels_that_no_class_has(label: int) -> None:
    message = f"labels row 1 holds {label}, outside the 5 classes of this head; use 0 to 4, or -100 for no label"
    with pytest.raises(InputError, match=f"^{message}$"):
        token_cross_entropy(scores(2, 3, 5), torch.tensor([[0, IGNORED, 4], [1, label, 2]]))


def test_labels_of_another_shape() -> None:
    with pytest.raises(
        InputError, match=r"^labels have shape \(3,\) but predictions .* \(2, 1\); give one number for each$"
    ):
        classification_loss(scores(2, 1), torch.zeros(3), "regression")
