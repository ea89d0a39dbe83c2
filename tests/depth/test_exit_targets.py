"""Targets of policies: exits by number, prices by block, constants."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from depthwise.config.depth import OracleConfig, TokenOracleConfig
from depthwise.depth import Context, Lesson
from depthwise.depth.exit_targets import (
    depth_of_exit,
    exit_number,
    sequence_targets,
    summed_cross_entropy,
    token_targets,
)
from depthwise.depth.oracles import sequence_oracle, token_oracle

EXITS = (1, 2, 4, 6)


def by_loops(lesson: Lesson, penalty: float, smoothing: float) -> list[list[int]]:
    """The definition by likelihood, exit by exit, where an exit costs as many blocks as lie before it."""
    numbers = []
    for row, valid in enumerate(lesson.valid.tolist()):
        numbers.append([0] * len(valid))
        real = [step for step, has_label in enumerate(valid) if has_label]
        for step in real:
            kernel = {t: math.exp(-((t - step) ** 2) / smoothing) if smoothing else float(t == step) for t in real}
            net = [
                sum(-kernel[t] * float(nll[row, t]) for t in real) / sum(kernel.values()) - penalty * depth
                for nll, depth in zip(lesson.nll.detach(), EXITS, strict=True)
            ]
            numbers[row][step] = 1 + net.index(max(net))
    return numbers


def test_depths_and_numbers_of_exits() -> None:
    assert exit_number(torch.tensor([1, 2, 3, 4, 5, 6]), EXITS).tolist() == [1, 2, 3, 3, 4, 4]
    assert depth_of_exit(torch.arange(4), EXITS).tolist() == list(EXITS)
    assert exit_number(torch.tensor([6]), (6,)).tolist() == [1]
    assert depth_of_exit(torch.tensor([0]), (6,)).tolist() == [6]


@pytest.mark.parametrize("penalty", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("smoothing", [0.0, 2.0])
def test_the_definition(lesson: Lesson, penalty: float, smoothing: float) -> None:
    options = TokenOracleConfig(oracle="likelihood", penalty=penalty, smoothing=smoothing)
    assert token_targets(lesson, options).tolist() == by_loops(lesson, penalty, smoothing)


def test_an_exit_after_every_block_is_the_oracle(lesson: Lesson, make_context: Callable[..., Context]) -> None:
    plain = replace(lesson, context=make_context(exits=(1, 2, 3, 4)))
    options = TokenOracleConfig(oracle="likelihood", penalty=0.3, smoothing=1.0)
    expected = token_oracle(-lesson.nll, lesson.valid, penalty=0.3, smoothing=1.0)
    assert torch.equal(token_targets(plain, options), expected)
    rows = sequence_oracle(-lesson.nll, lesson.valid, penalty=0.3) * torch.tensor([1, 1, 0])
    assert torch.equal(sequence_targets(plain, OracleConfig(oracle="likelihood", penalty=0.3)), rows)


def test_blocks_are_paid_and_not_exits(lesson: Lesson) -> None:
    """Exit 3 of (1, 2, 4, 6) is better by 2.5 than exit 2; it costs two blocks more."""
    nll = torch.tensor([9.0, 5.0, 2.5, 9.0], dtype=torch.float64).view(4, 1, 1).expand(4, 3, 5)
    lesson = replace(lesson, nll=nll)
    numbers = [
        token_targets(lesson, TokenOracleConfig(oracle="likelihood", penalty=penalty))[1].unique().tolist()
        for penalty in (0.0, 1.2, 1.3, 3.9, 4.1)
    ]
    assert numbers == [[3], [3], [2], [2], [1]]
    by_row = [
        int(sequence_targets(lesson, OracleConfig(oracle="likelihood", penalty=5 * penalty))[1])
        for penalty in (0.0, 1.2, 1.3, 3.9, 4.1)
    ]
    assert by_row == [3, 3, 2, 2, 1]


def test_without_price_or_smoothing_it_is_the_best_exit(lesson: Lesson) -> None:
    targets = token_targets(lesson, TokenOracleConfig(oracle="likelihood"))
    assert torch.equal(targets, (lesson.nll.argmin(0) + 1) * lesson.valid)


def test_smoothed_without_end_every_token_follows_its_sequence(lesson: Lesson) -> None:
    tokens = token_targets(lesson, TokenOracleConfig(oracle="likelihood", smoothing=math.inf))
    rows = sequence_targets(lesson, OracleConfig(oracle="likelihood"))
    assert torch.equal(tokens, rows[:, None] * lesson.valid)


@pytest.mark.parametrize("oracle", ["likelihood", "correctness"])
def test_a_higher_price_never_deepens(lesson: Lesson, oracle: str) -> None:
    prices = (0.0, 0.05, 0.2, 0.5, 1.0, 1e6)
    tokens = [token_targets(lesson, TokenOracleConfig(oracle=oracle, penalty=price, smoothing=1.0)) for price in prices]
    rows = [sequence_targets(lesson, OracleConfig(oracle=oracle, penalty=price)) for price in prices]
    for found in (tokens, rows):
        assert all((later <= earlier).all() for earlier, later in pairwise(found))
    assert torch.equal(tokens[-1], lesson.valid.long())
    assert rows[-1].tolist() == [1, 1, 0]


def test_the_lowest_of_equals(lesson: Lesson) -> None:
    alike = replace(lesson, nll=torch.ones_like(lesson.nll))
    assert torch.equal(token_targets(alike, TokenOracleConfig(oracle="likelihood")), lesson.valid.long())


def test_correctness_and_tokens_that_no_exit_gets_right(lesson: Lesson) -> None:
    correct = torch.zeros(4, 3, 5, dtype=torch.bool)
    correct[2:, 1, 0] = True
    correct[0, 1, 1] = correct[3, 1, 1] = True
    lesson = replace(lesson, correct=correct)
    assert token_targets(lesson, TokenOracleConfig())[1].tolist() == [3, 1, 1, 1, 1]
    assert token_targets(lesson, TokenOracleConfig(never_correct="last"))[1].tolist() == [3, 1, 4, 4, 4]
    assert sequence_targets(lesson, OracleConfig()).tolist() == [1, 4, 0]
    assert sequence_targets(lesson, OracleConfig(never_correct="last")).tolist() == [4, 4, 0]


@pytest.mark.parametrize("options", [{"oracle": "likelihood", "smoothing": 3.0}, {"smoothing": 3.0}, {}])
def test_what_has_no_label_does_not_count(lesson: Lesson, options: dict[str, Any]) -> None:
    hidden_away = ~lesson.valid
    other = replace(
        lesson,
        nll=lesson.nll.detach().masked_fill(hidden_away, 1e3),
        correct=lesson.correct ^ hidden_away,
        agrees=lesson.agrees ^ hidden_away,
    )
    tokens = TokenOracleConfig(**options)
    rows = OracleConfig(oracle=tokens.oracle)
    assert torch.equal(token_targets(other, tokens), token_targets(lesson, tokens))
    assert torch.equal(sequence_targets(other, rows), sequence_targets(lesson, rows))


def test_targets_are_constants(lesson: Lesson) -> None:
    assert not token_targets(lesson, TokenOracleConfig(oracle="likelihood", smoothing=1.0)).requires_grad
    assert not sequence_targets(lesson, OracleConfig(oracle="likelihood")).requires_grad


def test_cross_entropy_is_a_sum() -> None:
    log_probs = torch.randn(4, 2, 3, dtype=torch.float64).log_softmax(0)
    targets = torch.tensor([[1, 4, 0], [2, 0, 0]])
    expected = -(log_probs[0, 0, 0] + log_probs[3, 0, 1] + log_probs[1, 1, 0])
    torch.testing.assert_close(summed_cross_entropy(log_probs, targets), expected)
    assert summed_cross_entropy(log_probs, torch.zeros_like(targets)) == 0
