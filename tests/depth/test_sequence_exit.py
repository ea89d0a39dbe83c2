"""One depth for every sequence, from its source."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from depthwise.config import SequenceExitConfig
from depthwise.depth import Context, Lesson, SequenceExit
from depthwise.depth.exit_targets import sequence_targets
from depthwise.errors import InputError


def policy_with(**options: Any) -> SequenceExit:
    return SequenceExit(SequenceExitConfig(**options), width=8, num_exits=4).double()


def test_the_equation(make_context: Callable[..., Context]) -> None:
    """Real tokens of each source by hand, then the likeliest exit."""
    policy, source = policy_with(), torch.randn(4, 6, 8, dtype=torch.float64)
    lengths = [6, 1, 3, 2]
    valid = torch.arange(6) < torch.tensor(lengths)[:, None]
    depths = policy.plan(make_context(4, 5, source=source, source_valid=valid))
    for row, length in enumerate(lengths):
        mean = sum(source[row, step] for step in range(length)) / length
        logits = policy.classifier.weight @ mean + policy.classifier.bias
        assert depths[row].tolist() == [(1, 2, 4, 6)[int(logits.argmax())]] * 5


def test_every_exit_can_be_planned(make_context: Callable[..., Context]) -> None:
    policy = SequenceExit(SequenceExitConfig(), width=4, num_exits=4)
    with torch.no_grad():
        policy.classifier.weight.copy_(torch.eye(4))
        policy.classifier.bias.zero_()
    assert policy.plan(make_context(4, 2, source=torch.eye(4).unsqueeze(1)))[:, 0].tolist() == [1, 2, 4, 6]


def test_padding_of_the_source_does_not_count(make_context: Callable[..., Context]) -> None:
    policy, source = policy_with(), torch.randn(3, 6, 8, dtype=torch.float64)
    valid = torch.arange(6) < torch.tensor([[2], [6], [4]])
    loud = source.masked_fill(~valid.unsqueeze(-1), torch.nan)
    contexts = [make_context(source=each, source_valid=valid) for each in (source, loud)]
    assert torch.equal(policy.plan(contexts[0]), policy.plan(contexts[1]))
    alone = make_context(1, 5, source=source[:1, :2])
    assert torch.equal(policy.plan(contexts[0])[:1], policy.plan(alone))


def test_a_source_without_tokens(make_context: Callable[..., Context]) -> None:
    source, valid = torch.randn(1, 3, 8, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.bool)
    policy = policy_with()
    depths = policy.plan(make_context(1, 2, source=source, source_valid=valid))
    assert depths.tolist() == [[(1, 2, 4, 6)[int(policy.classifier.bias.argmax())]] * 2]


@pytest.mark.parametrize("options", [{}, {"oracle": "likelihood", "penalty": 0.7}, {"never_correct": "last"}])
def test_the_loss_is_summed_over_sequences(lesson: Lesson, options: dict[str, Any]) -> None:
    policy = policy_with(**options)
    assert policy.by_sequence
    targets = sequence_targets(lesson, policy.options)
    expected = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate([2, 6]):
        mean = lesson.context.source[row, :length].mean(0)
        expected -= policy.classifier(mean).log_softmax(-1)[targets[row] - 1]
    assert set(policy.losses(lesson)) == {"exit"}
    torch.testing.assert_close(policy.losses(lesson)["exit"], expected)


@pytest.mark.parametrize("detach", [False, True])
def test_where_gradients_go(lesson: Lesson, detach: bool) -> None:
    policy = policy_with(oracle="likelihood", detach_features=detach)
    policy.losses(lesson)["exit"].backward()
    assert policy.classifier.weight.grad.abs().sum() > 0
    assert (lesson.context.source.grad is None) == detach
    if not detach:
        assert lesson.context.source.grad[:2].abs().sum((1, 2)).min() > 0
        assert not lesson.context.source.grad[2].any(), "a sequence without a label teaches nothing"
    assert lesson.nll.grad is None
    assert all(hidden.grad is None for hidden in lesson.hidden)


def test_no_source(lesson: Lesson, make_context: Callable[..., Context]) -> None:
    message = "depth is guessed from the source, but there is none; choose another kind of policy"
    with pytest.raises(InputError, match=message):
        policy_with().plan(make_context())
    with pytest.raises(InputError, match=message):
        policy_with().losses(replace(lesson, context=make_context()))
