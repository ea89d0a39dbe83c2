"""Oracles of depth against plain loops, and the identities that tie them together."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depthwise.depth.oracles import correct_scores, sequence_oracle, token_oracle
from depthwise.errors import InputError

SCORES = torch.randn(4, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
VALID = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [False] + [True] * 6])


def by_loops(scores: torch.Tensor, valid: torch.Tensor, penalty: float, smoothing: float) -> list[list[int]]:
    """The definition, token by token."""
    num_layers, rows, length = scores.shape
    depths = []
    for row in range(rows):
        depths.append([0] * length)
        real = [step for step in range(length) if valid[row, step]]
        for step in real:
            weights = {
                other: float(other == step) if smoothing == 0 else math.exp(-((step - other) ** 2) / smoothing)
                for other in real
            }
            mass = sum(weights.values())
            net = [
                sum(weights[other] / mass * float(scores[n, row, other]) for other in real) - penalty * (n + 1)
                for n in range(num_layers)
            ]
            depths[row][step] = 1 + net.index(max(net))
    return depths


@pytest.mark.parametrize("penalty", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.5, 8.0])
def test_the_definition(penalty: float, smoothing: float) -> None:
    found = token_oracle(SCORES, VALID, penalty=penalty, smoothing=smoothing)
    assert found.tolist() == by_loops(SCORES, VALID, penalty, smoothing)


def test_without_price_or_smoothing_it_is_the_best_exit() -> None:
    assert torch.equal(token_oracle(SCORES), SCORES.argmax(0) + 1)


def test_smoothed_without_end_every_token_follows_its_sequence() -> None:
    lengths = VALID.sum(1)
    for penalty in (0.0, 0.05):
        tokens = token_oracle(SCORES, VALID, penalty=penalty, smoothing=math.inf)
        rows = torch.stack(
            [
                sequence_oracle(SCORES[:, [row]], VALID[[row]], penalty=penalty * int(lengths[row]))[0]
                for row in range(3)
            ]
        )
        assert torch.equal(tokens, rows[:, None] * VALID)


def test_whole_sequences_that_are_long_have_the_lowest_of_equals() -> None:
    """Exits that are right as often, at other tokens, are equal: no rounding comes between them."""
    draws = torch.rand(6, 16, 1000, generator=torch.Generator().manual_seed(0))
    correct = draws.argsort(-1) < 600
    valid = torch.arange(1000) < torch.arange(985, 1001)[:, None]
    scores = correct_scores(correct)
    for real in (valid, None):
        found = token_oracle(scores, real, smoothing=math.inf)
        expected = sequence_oracle(scores, real)[:, None].expand_as(found)
        assert torch.equal(found, expected if real is None else expected * real)


def test_a_high_price_buys_one_block() -> None:
    assert token_oracle(SCORES, penalty=1e6).eq(1).all()
    assert sequence_oracle(SCORES, penalty=1e6).tolist() == [1, 1, 1]


def test_the_lowest_of_equals() -> None:
    assert token_oracle(torch.zeros(5, 1, 2)).tolist() == [[1, 1]]
    assert sequence_oracle(torch.tensor([[[0.0]], [[2.0]], [[2.0]]])).tolist() == [2]


@given(st.lists(st.floats(0, 3), min_size=2, max_size=5))
def test_depth_falls_as_the_price_rises(penalties: list[float]) -> None:
    found = [token_oracle(SCORES, VALID, penalty=penalty, smoothing=2.0) for penalty in sorted(penalties)]
    assert all((later <= earlier).all() for earlier, later in pairwise(found))


def test_padding_does_not_count() -> None:
    loud = SCORES.masked_fill(~VALID, 1e9)
    for smoothing in (0.0, 3.0):
        assert torch.equal(
            token_oracle(loud, VALID, smoothing=smoothing), token_oracle(SCORES, VALID, smoothing=smoothing)
        )
    assert torch.equal(sequence_oracle(loud, VALID), sequence_oracle(SCORES, VALID))
    assert token_oracle(SCORES, torch.zeros(3, 7, dtype=torch.bool), smoothing=3.0).eq(0).all()


def test_tokens_that_no_exit_gets_right() -> None:
    correct = torch.tensor([[False, False, True], [True, False, True], [True, False, False]]).unsqueeze(1)
    assert token_oracle(correct_scores(correct), penalty=1e-3).tolist() == [[2, 1, 1]]
    assert token_oracle(correct_scores(correct, never_correct="last"), penalty=1e-3).tolist() == [[2, 3, 1]]


def test_nothing_flows_back() -> None:
    scores = SCORES.clone().requires_grad_()
    assert not token_oracle(scores, smoothing=1.0).requires_grad
    assert not sequence_oracle(scores).requires_grad


def test_what_makes_no_sense() -> None:
    with pytest.raises(InputError, match=r"the penalty of a block is -1.0, but cannot be below 0"):
        token_oracle(SCORES, penalty=-1.0)
    with pytest.raises(InputError, match=r"the smoothing over time is -2.0, but cannot be below 0"):
        token_oracle(SCORES, smoothing=-2.0)
    with pytest.raises(InputError, match='never_correct is "never", but may be first or last'):
        correct_scores(torch.ones(1, 1, 1, dtype=torch.bool), never_correct="never")
