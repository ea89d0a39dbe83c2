"""What training minimises."""

from depthwise.losses.cross_entropy import (
    IGNORED,
    check_labels,
    classification_loss,
    summed_over_items,
    token_cross_entropy,
)
from depthwise.losses.distillation import student_divergence
from depthwise.losses.label_smoothing import SmoothedLoss, label_smoothed_cross_entropy

__all__ = [
    "IGNORED",
    "SmoothedLoss",
    "check_labels",
    "classification_loss",
    "label_smoothed_cross_entropy",
    "student_divergence",
    "summed_over_items",
    "token_cross_entropy",
]
