"""Divergence of a student from its teacher, and what is learned from both labels and a teacher."""

import math

import pytest
import torch

from depthwise.losses import (
    IGNORED,
    TeacherScores,
    softened_divergence,
    student_divergence,
    teacher_divergence,
    token_cross_entropy,
)


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


def mixed_by_hand(
    student: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor, weight: float, temperature: float
) -> torch.Tensor:
    """The equation as it is written, in float64, row by row."""
    total = torch.zeros((), dtype=torch.float64)
    for ours, theirs, label in zip(student.double(), teacher.double(), labels.tolist(), strict=True):
        if label == IGNORED:
            continue
        p, q = ((scores / temperature).softmax(-1) for scores in (theirs, ours))
        divergence = sum((p[v] * (p[v] / q[v]).log() for v in range(len(p))), torch.zeros((), dtype=torch.float64))
        total = total + (1 - weight) * -ours.softmax(-1)[label].log() + weight * temperature**2 * divergence
    return total / int((labels != IGNORED).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 7.0])
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_labels_mixed_with_a_teacher(weight: float, temperature: float, dtype: torch.dtype) -> None:
    """Values and gradients; the loss is computed in float32 whatever the scores are in."""
    student, teacher = torch.randn(6, 5).to(dtype).requires_grad_(), (3 * torch.randn(6, 5)).to(dtype)
    labels = torch.tensor([0, 4, IGNORED, 2, 2, 1])
    scores = TeacherScores(teacher, weight, temperature)
    found = scores.mixed(token_cross_entropy(student, labels), student, labels != IGNORED, None)
    expected = mixed_by_hand(student, teacher, labels, weight, temperature)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    ours, theirs = (torch.autograd.grad(loss, student)[0] for loss in (found, expected))
    near = {"rtol": 1e-2, "atol": 1e-3} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(ours, theirs, **near)
    assert not ours[2].any()


def test_a_teacher_counts_by_the_items_of_the_whole_update() -> None:
    student, teacher, labels = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    scores = TeacherScores(teacher, 0.4, 2.0)
    whole, part = (scores.mixed(token_cross_entropy(student, labels, n), student, labels >= 0, n) for n in (4, 8))
    torch.testing.assert_close(whole, 2 * part)


def test_no_weight_is_no_teacher() -> None:
    student, labels = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0])
    plain = token_cross_entropy(student, labels)
    mixed = TeacherScores(torch.randn(4, 3), 0.0, 2.0).mixed(plain, student, labels >= 0, None)
    assert torch.equal(mixed, plain)
    one, other = (torch.autograd.grad(loss, student, retain_graph=True)[0] for loss in (plain, mixed))
    assert torch.equal(one, other)


def test_no_gradient_reaches_another_model() -> None:
    student, teacher = (torch.randn(3, 5, requires_grad=True) for _ in range(2))
    softened_divergence(student, teacher, 2.0).sum().backward()
    assert student.grad is not None
    assert student.grad.any()
    assert teacher.grad is None
