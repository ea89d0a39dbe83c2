"""Divergence of a student from its teacher."""

import math

import pytest
import torch

from depthwise.losses import student_divergence, teacher_divergence


def logs(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def test_values_by_hand() -> None:
    """Of the two directions, the one that weighs by the student."""
    found = student_divergence(logs([0.5, 0.5], [0.25, 0.75]), logs([0.25, 0.75], [0.5, 0.5]))
    expected = [
        0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75),
        0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5),
    ]
    assert expected[0] != pytest.approx(expected[1], rel=0.05)
    assert found.tolist() == pytest.approx(expected)


def test_it_is_that_of_torch() -> None:
    student, teacher = (torch.randn(3, 4, 7, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=student), torch.distributions.Categorical(logits=teacher)
    )
    torch.testing.assert_close(student_divergence(student, teacher), expected)
    assert (expected > 0).all()


def test_a_student_who_agrees_learns_nothing() -> None:
    scores = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    found = student_divergence(scores.log_softmax(-1), scores.log_softmax(-1))
    torch.testing.assert_close(found, torch.zeros(5, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(found.sum(), scores)
    torch.testing.assert_close(gradient, torch.zeros_like(scores))


def test_gradients_are_those_of_finite_differences() -> None:
    teacher = torch.randn(3, 5, dtype=torch.float64).log_softmax(-1)
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda scores: student_divergence(scores.log_softmax(-1), teacher), scores)


def test_no_gradient_reaches_the_teacher() -> None:
    student, teacher = (torch.randn(3, 5, requires_grad=True) for _ in range(2))
    student_divergence(student.log_softmax(-1), teacher.log_softmax(-1)).sum().backward()
    assert student.grad is not None
    assert student.grad.any()
    assert teacher.grad is None


def test_impossible_types() -> None:
    scores = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(2, 4, dtype=torch.float64)
    nowhere = torch.tensor([False, False, True, False])
    found = student_divergence(
        scores.masked_fill(nowhere, -torch.inf).log_softmax(-1),
        teacher.masked_fill(nowhere, -torch.inf).log_softmax(-1),
    )
    kept = [0, 1, 3]
    expected = student_divergence(scores[:, kept].log_softmax(-1), teacher[:, kept].log_softmax(-1))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss.sum(), scores)[0] for loss in (found, expected)))
    assert student_divergence(logs([0.5, 0.5]), logs([1.0, 0.0])).tolist() == [math.inf]


def test_the_other_direction_weighs_by_the_teacher() -> None:
    scores = torch.randn(3, 4, 7, dtype=torch.float64, requires_grad=True)
    student, teacher = scores.log_softmax(-1), torch.randn(3, 4, 7, dtype=torch.float64).log_softmax(-1)
    torch.testing.assert_close(teacher_divergence(student, teacher), student_divergence(teacher, student).detach())
    torch.autograd.gradcheck(lambda scores: teacher_divergence(scores.log_softmax(-1), teacher), scores)
    (gradient,) = torch.autograd.grad(teacher_divergence(student, student).sum(), scores)
    torch.testing.assert_close(gradient, torch.zeros_like(scores))
    assert teacher_divergence(logs([0.5, 0.5]), logs([1.0, 0.0])).tolist() == [math.log(2)]
    assert teacher_divergence(logs([1.0, 0.0]), logs([0.5, 0.5])).tolist() == [math.inf]
