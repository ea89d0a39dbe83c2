"""Learning from what another part of the model says, instead of from labels or beside them."""

import torch

from depthwise.shapes import Float, Tensor


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
