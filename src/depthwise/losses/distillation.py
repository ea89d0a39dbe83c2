"""Learning from what another part of the model says, or another model, instead of from labels or beside them."""

from typing import NamedTuple

import torch

from depthwise.kernels.weights import at_least_float32
from depthwise.losses.cross_entropy import summed_over_items
from depthwise.shapes import Bool, Float, Tensor


def student_divergence(
    student: Float[Tensor, "*batch V"], teacher: Float[Tensor, "*batch V"]
) -> Float[Tensor, "*batch"]:
    """KL(student ‖ teacher) = Σᵥ p_student(v)·(log p_student(v) − log p_teacher(v)), from log-probabilities.

    The direction in which the branches of FastBERT learn from its last layer (Liu et al. 2020). No gradient
    reaches the teacher. Types that are impossible for the student add nothing.
    """
    possible = student != -torch.inf
    student = student.masked_fill(~possible, 0.0)
    terms = student.exp() * (student - teacher.detach())
    return terms.masked_fill(~possible, 0.0).sum(-1)


def teacher_divergence(
    student: Float[Tensor, "*batch V"], teacher: Float[Tensor, "*batch V"]
) -> Float[Tensor, "*batch"]:
    """KL(teacher ‖ student) = Σᵥ p_teacher(v)·(log p_teacher(v) − log p_student(v)), from log-probabilities.

    The usual direction (Hinton et al. 2015): a student has to grant whatever its teacher does. No gradient reaches the
    teacher. Types that are impossible for the teacher add nothing.
    """
    teacher = teacher.detach()
    possible = teacher != -torch.inf
    teacher = teacher.masked_fill(~possible, 0.0)
    terms = teacher.exp() * (teacher - student.masked_fill(~possible, 0.0))
    return terms.masked_fill(~possible, 0.0).sum(-1)


DIVERGENCES = {"student": student_divergence, "teacher": teacher_divergence}
"""By whose probabilities the difference of the logarithms is weighed."""


def softened_divergence(
    student: Float[Tensor, "*batch V"], teacher: Float[Tensor, "*batch V"], temperature: float
) -> Float[Tensor, "*batch"]:
    """T²·KL(softmax(z_teacher / T) ‖ softmax(z_student / T)), from scores, in float32 (Hinton et al. 2015).

    T² keeps gradients about as large as those of labels, whatever the temperature.
    """
    own, wanted = ((at_least_float32(scores) / temperature).log_softmax(-1) for scores in (student, teacher))
    return temperature**2 * teacher_divergence(own, wanted)


class TeacherScores(NamedTuple):
    """What another model says of the items of a batch, and how much of what is learned comes from that."""

    logits: Float[Tensor, "*batch V"]
    weight: float
    temperature: float

    def mixed(
        self,
        loss: Float[Tensor, ""],
        scores: Float[Tensor, "*batch V"],
        is_counted: Bool[Tensor, "*batch"],
        num_items: Tensor | int | None,
    ) -> Float[Tensor, ""]:
        """(1 − w)·loss + w·Σ softened_divergence, the sum over counted items divided as ``summed_over_items`` says."""
        divergence = softened_divergence(scores, self.logits.reshape_as(scores), self.temperature)
        total = divergence.masked_fill(~is_counted, 0.0).sum()
        return (1 - self.weight) * loss + self.weight * summed_over_items(total, num_items, is_counted.sum())
