"""Learning from what another part of the model says instead of from labels."""

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
