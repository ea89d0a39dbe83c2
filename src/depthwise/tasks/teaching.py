"""What a batch of training holds of another run that is learned from, and what a classifier learns from that."""

from collections.abc import Mapping

from depthwise.config import TrainingConfig
from depthwise.losses import IGNORED, TeacherScores
from depthwise.shapes import Float, Tensor
from depthwise.tasks.encoding import inputs_in

TEACHER = "teacher_logits"
"""What the scores of the other run are called."""


def teacher_in(batch: Mapping[str, Tensor], training: TrainingConfig) -> TeacherScores | None:
    """What the other run says of a batch; none without one, and in validation."""
    if training.teacher is None or TEACHER not in batch:
        return None
    return TeacherScores(batch[TEACHER], float(training.teacher.weight), float(training.teacher.temperature))


def lesson_in(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What exits learn from: inputs, labels and, where there is one, what the other run says."""
    return inputs_in(batch) | {name: batch[name] for name in ("labels", TEACHER) if name in batch}


def with_teacher(
    loss: Float[Tensor, ""],
    logits: Float[Tensor, "... C"],
    batch: Mapping[str, Tensor],
    training: TrainingConfig,
    num_items: Tensor | int | None,
) -> Float[Tensor, ""]:
    """The loss by labels, mixed with what the other run teaches, where there is one."""
    teacher = teacher_in(batch, training)
    return loss if teacher is None else teacher.mixed(loss, logits, batch["labels"] != IGNORED, num_items)
