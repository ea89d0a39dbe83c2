"""Stacks without blocks: states and scores of every exit as given, and policies that walk along them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from depthwise.depth import Context, Lesson, Policy, Visit

Tensor = torch.Tensor
EXITS, NUM_EXITS, B, T, S, D, V = (1, 2, 4, 6), 4, 3, 5, 6, 8, 7


def nobody_looks() -> Tensor:
    raise AssertionError("scores were looked at")


def context_of(rows: int = B, length: int = T, exits: tuple[int, ...] = EXITS, **known: Any) -> Context:
    """Tokens 0, 1, ... of every row, unless told otherwise."""
    known.setdefault("steps", torch.arange(length).expand(rows, length))
    return Context(shape=(rows, length), exits=exits, **known)


def visits_of(hidden: Tensor, scores: Tensor | None, context: Context) -> list[Visit]:
    """A stop at every exit but the last; without ``scores`` nobody may look at them."""
    return [
        Visit(
            depth=context.exits[index],
            hidden=hidden[index],
            before=hidden[index - 1] if index else None,
            context=context,
            scoring=nobody_looks if scores is None else lambda index=index: scores[index],
        )
        for index in range(len(context.exits) - 1)
    ]


def walk(policy: Policy, hidden: Tensor, scores: Tensor | None = None, context: Context | None = None) -> Tensor:
    """The depth of every token, whether it is planned or found on the way."""
    context = context_of(*hidden.shape[1:3]) if context is None else context
    if policy.plans:
        return policy.plan(context)
    depths = torch.full(hidden.shape[1:3], context.exits[-1])
    is_here, state = torch.ones(hidden.shape[1:3], dtype=torch.bool), {}
    for visit in visits_of(hidden, scores, context):
        leaves, state = policy.leaving(visit, state)
        assert leaves.dtype == torch.bool
        assert all(tensor.shape[:2] == hidden.shape[1:3] for tensor in state.values())
        depths = torch.where(is_here & leaves, visit.depth, depths)
        is_here = is_here & ~leaves
    return depths


@pytest.fixture
def states() -> Tensor:
    return torch.randn(NUM_EXITS, B, T, D, dtype=torch.float64)


@pytest.fixture
def scores() -> Tensor:
    return (3 * torch.randn(NUM_EXITS, B, T, V, dtype=torch.float64)).log_softmax(-1)


@pytest.fixture
def make_context() -> Callable[..., Context]:
    return context_of


@pytest.fixture
def make_visits() -> Callable[..., list[Visit]]:
    return visits_of


@pytest.fixture
def depths_of() -> Callable[..., Tensor]:
    return walk


@pytest.fixture
def lesson() -> Lesson:
    """Random exits of random tokens in float64, all with gradients; the first row is short, the last has no label."""
    valid = torch.ones(B, T, dtype=torch.bool)
    valid[0, 3:] = False
    valid[2] = False
    source_valid = torch.ones(B, S, dtype=torch.bool)
    source_valid[0, 2:] = False
    hidden = torch.randn(NUM_EXITS, B, T, D, dtype=torch.float64)
    agrees = torch.rand(NUM_EXITS, B, T) < 0.6
    agrees[-1] = True
    source = torch.randn(B, S, D, dtype=torch.float64).requires_grad_()
    return Lesson(
        context=context_of(valid=valid, source=source, source_valid=source_valid),
        hidden=tuple(each.clone().requires_grad_() for each in hidden),
        nll=(4 * torch.rand(NUM_EXITS, B, T, dtype=torch.float64)).requires_grad_(),
        correct=torch.rand(NUM_EXITS, B, T) < 0.5,
        agrees=agrees,
        valid=valid,
    )
