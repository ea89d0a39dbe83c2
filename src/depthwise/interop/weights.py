"""Weights of another library on their way into a model: ties, and everything that does not fit."""

from collections.abc import Mapping, Sequence

import torch

from depthwise.errors import Problem
from depthwise.shapes import Tensor

MOST_NAMED = 12
"""How many names a message lists before it only counts."""


def in_single_precision(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights; those in half (or double) precision become single."""
    return {str(name): value.float() if value.is_floating_point() else value for name, value in weights.items()}


def tie(weights: dict[str, Tensor], names: Sequence[str], sources: Mapping[str, str], remedy: str) -> list[Problem]:
    """Give a tied matrix all its names; files hold it under one of them or under each, and then it must be the same.

    ``sources`` are the names in the file.
    """
    held = [name for name in names if name in weights]
    problems = [
        Problem(sources[name], f"differs from {sources[held[0]]}, to which the options tie it; {remedy}")
        for name in held[1:]
        if not torch.equal(weights[name], weights[held[0]])
    ]
    if held:
        weights.update(dict.fromkeys(names, weights[held[0]]))
    return problems


def misfits(
    weights: Mapping[str, Tensor],
    sources: Mapping[str, str],
    left_over: Sequence[str],
    expected: Mapping[str, torch.Size],
    remedy: str,
) -> list[Problem]:
    """What keeps weights from filling a model: those without a place, those it misses, those of another shape."""
    problems = []
    if left_over:
        problems.append(Problem("left over", f"no place in this model for {_named(left_over)}; {remedy}"))
    if missing := [name for name in expected if name not in weights]:
        problems.append(Problem("missing", f"nothing among the weights for {_named(missing)}; {remedy}"))
    for name, source in sources.items():
        found, wanted = tuple(weights[name].shape), tuple(expected[name])
        if found != wanted:
            problems.append(Problem(source, f"has shape {found}, but the options ask for {wanted}; {remedy}"))
    return problems


def _named(keys: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(keys))
    rest = len(distinct) - MOST_NAMED
    return ", ".join(distinct[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
