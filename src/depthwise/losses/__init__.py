"""What training minimises."""

from depthwise.losses.classifier_exits import class_exits, number_exits
from depthwise.losses.cross_entropy import (
    IGNORED,
    check_labels,
    classification_loss,
    summed_over_items,
    token_cross_entropy,
)
from depthwise.losses.distillation import TeacherScores, softened_divergence, student_divergence, teacher_divergence
from depthwise.losses.exits import ExitLoss, ExitStatistics, ExitTargets, exit_cross_entropy
from depthwise.losses.label_smoothing import SmoothedLoss, label_smoothed_cross_entropy

__all__ = [
    "IGNORED",
    "ExitLoss",
    "ExitStatistics",
    "ExitTargets",
    "SmoothedLoss",
    "TeacherScores",
    "check_labels",
    "class_exits",
    "classification_loss",
    "exit_cross_entropy",
    "label_smoothed_cross_entropy",
    "number_exits",
    "softened_divergence",
    "student_divergence",
    "summed_over_items",
    "teacher_divergence",
    "token_cross_entropy",
]
