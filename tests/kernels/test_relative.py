"""Attention that knows distances, against its scores written out pair by pair."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.kernels.relative import attend_relative, relative_scores

FURTHEST = 3
TERMS = [
    {"by_queries": True, "by_keys": False},
    {"by_queries": False, "by_keys": True},
    {"by_queries": True, "by_keys": True},
    {"by_queries": True, "by_keys": True, "literal": True},
]


def drawn(length: int, num_queries: int | None = None) -> list[Tensor]:
    torch.manual_seed(length)
    queries, keys, values = (torch.randn(2, 3, length, 4, dtype=torch.float64) for _ in range(3))
    distances = torch.randn(2 * FURTHEST + 1, 4, dtype=torch.float64)
    return [queries[:, :, : num_queries or length], keys, values, distances]


def written_out(queries: Tensor, keys: Tensor, distances: Tensor, readers: Any, **terms: bool) -> Tensor:
    found = torch.zeros(*queries.shape[:3], keys.shape[2], dtype=queries.dtype)
    for row, head, place, j in torch.cartesian_prod(*(torch.arange(size) for size in found.shape)).tolist():
        i = readers[row][place]
        seen_by_query = distances[min(max(i - j, -FURTHEST), FURTHEST) + FURTHEST]
        seen_by_key = distances[min(max(j - i, -FURTHEST), FURTHEST) + FURTHEST]
        if terms["by_queries"]:
            found[row, head, place, j] += queries[row, head, place] @ seen_by_query
        if terms["by_keys"]:
            found[row, head, place, j] += keys[row, head, j] @ (seen_by_query if terms.get("literal") else seen_by_key)
    return found


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("length", [1, 2, 4, 9])
def test_scores_of_whole_sequences(length: int, terms: dict[str, bool]) -> None:
    queries, keys, _, distances = drawn(length)
    expected = written_out(queries, keys, distances, [range(length)] * 2, **terms)
    torch.testing.assert_close(relative_scores(queries, keys, distances, **terms), expected)


@pytest.mark.parametrize("terms", TERMS)
def test_scores_of_listed_and_of_last_queries(terms: dict[str, bool]) -> None:
    queries, keys, _, distances = drawn(7, 2)
    places = torch.tensor([[5, 0], [3, 6]])
    found = relative_scores(queries, keys, distances, positions=places, **terms)
    torch.testing.assert_close(found, written_out(queries, keys, distances, places.tolist(), **terms))
    last = relative_scores(queries, keys, distances, **terms)
    torch.testing.assert_close(last, written_out(queries, keys, distances, [[5, 6]] * 2, **terms))


@pytest.mark.parametrize("terms", TERMS)
def test_gradients_do_not_depend_on_the_way(terms: dict[str, bool]) -> None:
    def gradients(positions: Tensor | None) -> tuple[Tensor, ...]:
        parts = [part.requires_grad_() for part in drawn(6)]
        scores = relative_scores(parts[0], parts[1], parts[3], positions=positions, **terms)
        weights = torch.linspace(-1, 1, scores.numel(), dtype=scores.dtype).view_as(scores)
        (scores * weights).sum().backward()
        return tuple(torch.zeros_like(part) if part.grad is None else part.grad for part in parts)

    for shifted, gathered in zip(gradients(None), gradients(torch.arange(6).expand(2, -1)), strict=True):
        torch.testing.assert_close(shifted, gathered)


@pytest.mark.parametrize("scale_terms", [False, True])
def test_attention_is_a_softmax_over_what_is_seen(scale_terms: bool) -> None:
    queries, keys, values, distances = drawn(6)
    valid = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    found = attend_relative(queries, keys, values, distances, valid=valid, scale_terms=scale_terms)
    bias = written_out(queries, keys, distances, [range(6)] * 2, by_queries=True, by_keys=True)
    scores = (queries @ keys.transpose(-1, -2) + bias) / math.sqrt(4 * (3 if scale_terms else 1))
    expected = scores[1:, :, :4, :4].softmax(-1) @ values[1:, :, :4]
    torch.testing.assert_close(found[1:, :, :4], expected)
    torch.testing.assert_close(found[0], (scores.softmax(-1) @ values)[0])


def test_a_window_limits_it() -> None:
    queries, keys, values, distances = drawn(6)
    alone = attend_relative(queries, keys, values, distances, window=1)
    torch.testing.assert_close(alone, values)


def test_there_is_no_vector_for_each_pair() -> None:
    """The largest tensor is that of all queries, or has two numbers for each pair and head."""
    sizes: list[int] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            sizes.extend([made.numel()] if isinstance(made, Tensor) else [])
            return made

    length, width = 12, 64
    queries, keys, values = (torch.randn(1, 2, length, width) for _ in range(3))
    with Watch():
        attend_relative(queries, keys, values, torch.randn(7, width))
    assert max(sizes) <= 2 * length * max(width, 2 * length) < 2 * length * length * width
