"""Losses of the heads, each a sum over items divided by how many there are."""

import torch
from torch.nn import functional as F

from depthwise.errors import InputError
from depthwise.kernels import smoothed_cross_entropy
from depthwise.kernels.weights import at_least_float32
from depthwise.shapes import Float, Int, Tensor

IGNORED = -100
"""Label of positions that carry no loss."""


def token_cross_entropy(
    logits: Float[Tensor, "... V"], labels: Int[Tensor, "..."], num_items: Tensor | int | None = None
) -> Float[Tensor, ""]:
    """Cross-entropy in float32 over all labels that are not ``IGNORED``; see ``summed_over_items``."""
    check_labels(labels, logits.shape[-1])
    labels = labels.to(logits.device)
    total, _ = smoothed_cross_entropy(logits.flatten(0, -2), labels.flatten(), 0.0, ignored=IGNORED)
    return summed_over_items(total, num_items, (labels != IGNORED).sum())


def summed_over_items(
    total: Float[Tensor, ""], num_items: Tensor | int | None, num_here: Tensor | int
) -> Float[Tensor, ""]:
    """A summed loss divided by ``num_items`` (all micro-batches and workers) or, without it, by the items at hand.

    Where no item carries a loss the result is 0, not NaN.
    """
    count = num_here if num_items is None else num_items
    return total / torch.as_tensor(count, device=total.device).clamp(min=1)


def check_labels(labels: Int[Tensor, "..."], num_classes: int) -> None:
    """Refuse labels that no class has. Only tensors on the CPU are looked into.

    Elsewhere torch fails by itself, and where its operators are fused (``smoothed_cross_entropy``) the loss is NaN.
    """
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    outside = ((labels < 0) | (labels >= num_classes)) & (labels != IGNORED)
    if bool(outside.any()):
        where = outside.nonzero()[0].tolist()
        found = int(labels[tuple(where)])
        raise InputError(
            f"labels row {where[0]} holds {found}, outside the {num_classes} classes of this head; use 0 to "
            f"{num_classes - 1}, or {IGNORED} for no label"
        )


def classification_loss(
    logits: Float[Tensor, "B labels"], labels: Tensor, problem: str, num_items: Tensor | int | None = None
) -> Float[Tensor, ""]:
    """Loss of a classifier of whole sequences.

    ``problem`` is one of Transformers' three: ``regression`` (squared error; NaN where a row carries no loss),
    ``single_label_classification`` (cross-entropy) or ``multi_label_classification`` (binary cross-entropy per label).
    """
    if problem == "single_label_classification":
        return token_cross_entropy(logits, labels, num_items)
    if labels.numel() != logits.numel():
        raise InputError(
            f"labels have shape {tuple(labels.shape)} but predictions have shape {tuple(logits.shape)}; "
            "give one number for each"
        )
    logits = at_least_float32(logits)
    targets = labels.to(logits).view_as(logits)
    if problem == "regression":
        missing = targets.isnan()
        errors = (logits - targets).masked_fill(missing, 0)
        return summed_over_items(errors.square().sum(), num_items, (~missing).sum())
    assert problem == "multi_label_classification"
    total = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    return summed_over_items(total, num_items, targets.numel())
