"""Losses of the heads, each a sum over items divided by how many there are."""

import torch
from torch.nn import functional as F

from depthwise.errors import InputError
from depthwise.shapes import Float, Int, Tensor

IGNORED = -100
"""Label of positions that carry no loss."""


def token_cross_entropy(
    logits: Float[Tensor, "... V"], labels: Int[Tensor, "..."], num_items: Tensor | int | None = None
) -> Float[Tensor, ""]:
    """Cross-entropy in float32 over all labels that are not ``IGNORED``; see ``summed_over_items``."""
    check_labels(labels, logits.shape[-1])
    labels = labels.to(logits.device)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    total = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")
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
    """Refuse labels that no class has. Only tensors on the CPU are looked into; elsewhere torch fails by itself."""
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    outside = ((labels < 0) | (labels >= num_classes)) & (labels != IGNORED)
    if bool(outside.any()):
        where = outside.nonzero()[0].tolist()
        found = int(labels[tuple(where)])
        raise InputError(f"labels row {where[0]} holds {found}, outside the {num_classes} classes of this head")


def classification_loss(
    logits: Float[Tensor, "B labels"], labels: Tensor, problem: str, num_items: Tensor | int | None = None
) -> Float[Tensor, ""]:
    """Loss of a classifier of whole sequences.

    ``problem`` is one of Transformers' three: ``regression`` (squared error; NaN where a row carries no loss),
    ``single_label_classification`` (cross-entropy) or ``multi_label_classification`` (binary cross-entropy per label).
    """
    labels = labels.to(logits.device)
    if problem == "single_label_classification":
        return token_cross_entropy(logits, labels, num_items)
    if labels.numel() != logits.numel():
        raise InputError(f"labels have shape {tuple(labels.shape)} but predictions have shape {tuple(logits.shape)}")
    logits = logits if logits.dtype == torch.float64 else logits.float()
    targets = labels.to(logits.dtype).view_as(logits)
    if problem == "regression":
        counted = ~targets.isnan()
        errors = (logits - targets.masked_fill(~counted, 0)).square()
        return summed_over_items((errors * counted).sum(), num_items, counted.sum())
    assert problem == "multi_label_classification"
    total = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    return summed_over_items(total, num_items, targets.numel())
