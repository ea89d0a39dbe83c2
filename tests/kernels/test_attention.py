"""Attention over a memory, against a softmax that is written out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from depthwise.kernels import attend
from depthwise.kernels.attention import attend_source, for_changing_lengths


def sees(reader: int, step: int, *, causal: bool, window: int | None, real: bool) -> bool:
    """Whether a query may look at a step, from the definition."""
    if reader == step:
        return True
    near = window is None or (reader - step < window if causal else abs(reader - step) <= (window - 1) / 2)
    return real and near and not (causal and step > reader)


def softmax_over(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Per row, head and query: exponentials of the seen keys, divided by their sum."""
    output = torch.zeros(*queries.shape[:3], values.shape[-1], dtype=queries.dtype)
    for row, head, place in torch.cartesian_prod(*(torch.arange(size) for size in queries.shape[:3])).tolist():
        steps = seen[row, place].nonzero().flatten()
        scores = keys[row, head, steps] @ queries[row, head, place] / queries.shape[-1] ** 0.5
        weights = (scores - scores.max()).exp()
        output[row, head, place] = weights / weights.sum() @ values[row, head, steps]
    return output


@dataclass(frozen=True)
class Case:
    queries: Tensor
    keys: Tensor
    values: Tensor
    causal: bool
    window: int | None
    valid: Tensor | None
    positions: Tensor | None

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("causal", "window", "valid", "positions")}

    @property
    def seen(self) -> Tensor:
        rows, num_queries, length = self.queries.shape[0], self.queries.shape[2], self.keys.shape[2]
        last = list(range(length - num_queries, length))
        readers = [last] * rows if self.positions is None else self.positions.tolist()
        real = torch.ones(rows, length).bool().tolist() if self.valid is None else self.valid.tolist()
        masks = [
            [
                [
                    sees(reader, step, causal=self.causal, window=self.window, real=real[row][step])
                    for step in range(length)
                ]
                for reader in readers[row]
            ]
            for row in range(rows)
        ]
        return torch.tensor(masks, dtype=torch.bool).reshape(rows, num_queries, length)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows, heads, depth = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    length, causal = draw(st.integers(1, 7)), draw(st.booleans())
    num_queries = draw(st.one_of(st.just(length), st.integers(1, length)))
    windows = st.integers(1, 16) if causal else st.integers(0, 7).map(lambda half: 2 * half + 1)
    window = draw(st.none() | windows)
    kind = draw(st.sampled_from(["none", "any", "left", "right", "all"]))
    torch.manual_seed(draw(st.integers(0, 99)))
    steps, lost = torch.arange(length), torch.randint(length, (rows, 1))
    valid = {
        "none": None,
        "any": torch.rand(rows, length) < 0.6,
        "left": steps >= lost,
        "right": steps < length - lost,
        "all": torch.zeros(rows, length, dtype=torch.bool),
    }[kind]
    return Case(
        torch.randn(rows, heads, num_queries, depth, dtype=torch.float64),
        torch.randn(rows, heads, length, depth, dtype=torch.float64),
        torch.randn(rows, heads, length, depth, dtype=torch.float64),
        causal,
        window,
        valid,
        torch.randint(length, (rows, num_queries)) if draw(st.booleans()) else None,
    )


@given(case=cases())
def test_against_a_written_softmax(case: Case, assert_same: Callable[..., None]) -> None:
    """Also for padded queries and for rows of padding alone, which see themselves: nothing is ever NaN."""
    y = attend(case.queries, case.keys, case.values, **case.options)
    assert y.isfinite().all()
    assert_same(y, softmax_over(case.queries, case.keys, case.values, case.seen))


@given(case=cases())
def test_gradients(case: Case, assert_same: Callable[..., None]) -> None:
    leaves = tuple(tensor.requires_grad_() for tensor in (case.queries, case.keys, case.values))
    y = attend(*leaves, **case.options)
    scores = (case.queries @ case.keys.transpose(-1, -2)) / case.queries.shape[-1] ** 0.5
    expected = scores.masked_fill(~case.seen.unsqueeze(1), -torch.inf).softmax(-1) @ case.values
    mark = torch.randn_like(y)
    for actual, wanted in zip(
        torch.autograd.grad(y, leaves, mark), torch.autograd.grad(expected, leaves, mark), strict=True
    ):
        assert_same(actual, wanted)


def tokens_seen(length: int, **options: Any) -> list[str]:
    """For each query, the steps that it gives weight to, as a string of + and -."""
    nothing = torch.zeros(1, 1, length, length, dtype=torch.float64)
    mixed = attend(nothing, nothing, torch.eye(length, dtype=torch.float64)[None, None], **options)
    return ["".join("+" if weight > 0 else "-" for weight in row) for row in mixed[0, 0].tolist()]


def test_windows() -> None:
    assert tokens_seen(4, causal=False) == ["++++"] * 4
    assert tokens_seen(4, causal=True) == ["+---", "++--", "+++-", "++++"]
    assert tokens_seen(4, causal=True, window=2) == ["+---", "++--", "-++-", "--++"]
    assert tokens_seen(4, causal=False, window=3) == ["++--", "+++-", "-+++", "--++"]
    assert tokens_seen(3, causal=False, window=1) == tokens_seen(3, causal=True, window=1) == ["+--", "-+-", "--+"]


def test_windows_with_padding() -> None:
    """A padded step is seen by nobody but itself."""
    valid = torch.tensor([[True, False, True, True]])
    assert tokens_seen(4, causal=True, valid=valid) == ["+---", "++--", "+-+-", "+-++"]
    assert tokens_seen(4, causal=True, window=2, valid=valid) == ["+---", "++--", "--+-", "--++"]
    assert tokens_seen(4, causal=False, valid=valid) == ["+-++", "++++", "+-++", "+-++"]
    assert tokens_seen(4, causal=False, window=3, valid=valid) == ["+---", "+++-", "--++", "--++"]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_window_that_reaches_everything_is_none(length: int, assert_same: Callable[..., None]) -> None:
    queries, keys, values = torch.randn(3, 2, 2, length, 3, dtype=torch.float64)
    for causal, window in ((True, length), (False, 2 * length - 1)):
        windowed = attend(queries, keys, values, causal=causal, window=window)
        assert_same(windowed, attend(queries, keys, values, causal=causal))
    for causal in (True, False):
        assert_same(attend(queries, keys, values, causal=causal, window=1), values)


@pytest.mark.parametrize("step", range(4))
def test_a_single_query_sees_no_further_than_its_position(step: int) -> None:
    """Only without positions is it the last of all."""
    queries, steps = torch.zeros(1, 1, 1, 4), torch.eye(4)[None, None]
    mixed = attend(queries, steps, steps, causal=True, positions=torch.tensor([[step]]))
    assert mixed.flatten().nonzero().flatten().tolist() == list(range(step + 1))
    assert attend(queries, steps, steps, causal=True).all()


def test_nobody_reads() -> None:
    keys, nowhere = torch.randn(2, 2, 5, 3), torch.empty(2, 0, dtype=torch.long)
    for causal in (True, False):
        for window in (None, 3):
            y = attend(torch.empty(2, 2, 0, 3), keys, keys, causal=causal, window=window, positions=nowhere)
            assert y.shape == (2, 2, 0, 3)


@pytest.mark.parametrize("options", [{}, {"window": 3}, {"valid": torch.ones(1, 8).bool()}], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_drops_weights_and_scales_the_others(causal: bool, options: dict[str, Any]) -> None:
    queries, values = torch.randn(1, 500, 8, 2, dtype=torch.float64), torch.ones(1, 500, 8, 2, dtype=torch.float64)
    y = attend(queries, queries, values, causal=causal, dropout=0.5, **options)
    assert (y[:, :, 0] - 1).abs().max() > 0.1
    torch.testing.assert_close(y.mean(), torch.ones_like(y.mean()), rtol=0, atol=0.05)
    if causal:
        assert set(y[:, :, 0].unique().tolist()) == {0.0, 2.0}


# Attention over a source


@given(
    num_queries=st.integers(0, 4),
    source=st.integers(1, 6),
    padded=st.booleans(),
    heads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_a_source_is_seen_by_every_query(
    num_queries: int, source: int, padded: bool, heads: int, seed: int, assert_same: Callable[..., None]
) -> None:
    torch.manual_seed(seed)
    queries = torch.randn(2, heads, num_queries, 3, dtype=torch.float64)
    keys, values = torch.randn(2, 2, heads, source, 3, dtype=torch.float64)
    valid = torch.rand(2, source) < 0.6
    valid[:, -1] = True
    y = attend_source(queries, keys, values, valid=valid if padded else None)
    seen = valid if padded else torch.ones_like(valid)
    assert_same(y, softmax_over(queries, keys, values, seen.unsqueeze(1).expand(-1, num_queries, -1)))


def test_a_source_of_padding_alone_stays_finite() -> None:
    queries, keys = torch.randn(2, 1, 3, 4), torch.randn(2, 1, 5, 4)
    valid = torch.tensor([[True] * 5, [False] * 5])
    assert attend_source(queries, keys, keys, valid=valid).isfinite().all()


def test_dropout_over_a_source() -> None:
    queries, keys = torch.randn(1, 200, 2, 2), torch.randn(1, 200, 4, 2)
    y = attend_source(queries, keys, torch.ones_like(keys), dropout=0.5)
    assert (y - 1).abs().max() > 0.1
    torch.testing.assert_close(y.mean(), torch.ones(()), rtol=0, atol=0.1)


def test_attention_for_changing_lengths_is_the_same() -> None:
    queries, keys, values = torch.randn(3, 2, 2, 5, 4).unbind(0)
    plain = attend(queries, keys, values, causal=True)
    with for_changing_lengths():
        torch.testing.assert_close(attend(queries, keys, values, causal=True), plain)
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()
