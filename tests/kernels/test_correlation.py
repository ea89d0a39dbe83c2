"""All ways of summing over taps agree with plain loops, forward and backward, whatever the shape."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from depthwise.kernels import correlation
from depthwise.kernels.correlation import (
    BAND_FROM,
    BLOCK,
    GROUPED_BELOW,
    TAPS_UP_TO,
    correlate,
    correlate_banded,
    correlate_gathered,
    correlate_grouped,
    correlate_taps,
    correlate_windows,
)

EVERYWHERE = (correlate_taps, correlate_banded)
AT_POSITIONS = (correlate_gathered, correlate_windows)


@dataclass(frozen=True)
class Case:
    """A shape of the problem; ``fixed_rows`` and ``fixed_steps`` say over what the kernel is broadcast."""

    rows: int
    length: int
    heads: int
    channels_per_head: int
    taps: int
    left: int
    fixed_rows: bool = False
    fixed_steps: bool = False

    def inputs(self, steps: int | None = None) -> tuple[Tensor, Tensor]:
        """An input and kernels for all steps, or for ``steps`` positions."""
        steps = self.length if steps is None else steps
        x = torch.randn(self.rows, self.length, self.heads * self.channels_per_head, dtype=torch.float64)
        rows, steps = (1 if self.fixed_rows else self.rows), (1 if self.fixed_steps else steps)
        return x, torch.randn(rows, steps, self.heads, self.taps, dtype=torch.float64)


def lefts(taps: int) -> st.SearchStrategy[int]:
    return st.one_of(st.just(taps - 1), st.just((taps - 1) // 2), st.integers(0, taps - 1))


@st.composite
def cases(draw: st.DrawFn, fixed: bool = False) -> Case:
    taps = draw(st.one_of(st.integers(1, 9), st.sampled_from([15, 16, 31, 33, 64, 255])))
    length = draw(st.one_of(st.integers(1, 10), st.just(taps), st.sampled_from([31, 32, 33, 64, 65])))
    return Case(
        rows=draw(st.integers(1, 3)),
        length=length,
        heads=draw(st.integers(1, 4)),
        channels_per_head=draw(st.integers(1, 3)),
        taps=taps,
        left=draw(lefts(taps)),
        fixed_rows=fixed or draw(st.booleans()),
        fixed_steps=fixed or draw(st.booleans()),
    )


CORNERS = {
    "one step": Case(2, 1, 2, 2, 3, 1),
    "one step, causal, even": Case(2, 1, 2, 2, 4, 3),
    "one tap": Case(2, 5, 2, 2, 1, 0),
    "fewer steps than taps": Case(2, 3, 2, 1, 7, 3),
    "as many steps as taps": Case(2, 7, 1, 4, 7, 6),
    "one head": Case(2, 6, 1, 4, 3, 1),
    "one head per channel": Case(2, 6, 4, 1, 3, 2),
    "wide, short": Case(2, 5, 2, 2, 255, 127),
    "wide, causal": Case(1, 40, 2, 1, 255, 254),
    "a block": Case(1, BLOCK, 2, 2, 5, 4),
    "a block and a step": Case(1, BLOCK + 1, 2, 2, 31, 15),
    "fixed kernel": Case(2, 40, 2, 2, 17, 8, fixed_rows=True, fixed_steps=True),
    "fixed per row": Case(2, 40, 2, 2, 17, 8, fixed_steps=True),
}

corners = pytest.mark.parametrize("case", CORNERS.values(), ids=CORNERS.keys())


@given(case=cases())
@example(case=CORNERS["wide, short"])
def test_all_steps(case: Case, sum_over_taps: Callable[..., Tensor], assert_same: Callable[..., None]) -> None:
    x, weight = case.inputs()
    expected = sum_over_taps(x, weight, case.left)
    for walk in EVERYWHERE:
        assert_same(walk(x, weight, case.left), expected)
    assert_same(correlate(x, weight, left=case.left, positions=None), expected)


@corners
def test_corners(case: Case, sum_over_taps: Callable[..., Tensor], assert_same: Callable[..., None]) -> None:
    x, weight = case.inputs()
    expected = sum_over_taps(x, weight, case.left)
    for walk in EVERYWHERE:
        assert_same(walk(x, weight, case.left), expected)
    positions = torch.arange(case.length).expand(case.rows, -1)
    for walk in AT_POSITIONS:
        assert_same(walk(x, weight, case.left, positions), expected)
    for asked in (None, positions):
        assert_same(correlate(x, weight, left=case.left, positions=asked), expected)


@given(case=cases(fixed=True))
def test_fixed_kernels(case: Case, sum_over_taps: Callable[..., Tensor], assert_same: Callable[..., None]) -> None:
    x, weight = case.inputs()
    expected = sum_over_taps(x, weight, case.left)
    for walk in (*EVERYWHERE, correlate_grouped):
        assert_same(walk(x, weight, case.left), expected)


@given(case=cases(), num_positions=st.integers(0, 5), seed=st.integers(0, 99))
def test_some_positions(
    case: Case,
    num_positions: int,
    seed: int,
    sum_over_taps: Callable[..., Tensor],
    assert_same: Callable[..., None],
) -> None:
    """Every row asks for its own positions, in any order and with repeats; also for none at all."""
    torch.manual_seed(seed)
    x, weight = case.inputs(num_positions)
    positions = torch.randint(case.length, (case.rows, num_positions))
    expected = sum_over_taps(x, weight, case.left, positions)
    for walk in AT_POSITIONS:
        assert_same(walk(x, weight, case.left, positions), expected)
    assert_same(correlate(x, weight, left=case.left, positions=positions), expected)


@pytest.mark.parametrize("fixed_steps", [False, True])
def test_windows_in_pieces(monkeypatch: pytest.MonkeyPatch, fixed_steps: bool) -> None:
    """However few of them are gathered at a time."""
    x, weight = Case(2, 9, 2, 3, 4, 1, fixed_steps=fixed_steps).inputs(5)
    positions = torch.randint(9, (2, 5))
    expected = correlate_gathered(x, weight, 1, positions)
    for values in (1, 2 * 4 * 6 * 2, 2**20):
        monkeypatch.setattr(correlation, "WINDOWED_AT_ONCE", values)
        torch.testing.assert_close(correlate_windows(x, weight, 1, positions), expected)


def unfolded(x: Tensor, weight: Tensor, left: int) -> Tensor:
    """All windows side by side, then one product: simple, and K times the memory of its input."""
    padded = torch.nn.functional.pad(x, (0, 0, left, weight.shape[-1] - 1 - left))
    windows = padded.unfold(1, weight.shape[-1], 1).unflatten(2, (weight.shape[-2], -1))
    return (windows * weight.unsqueeze(-2)).sum(-1).flatten(-2)


def gradients(run: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Of a sum of the output with weights that depend only on its shape."""
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = run(x, weight)
    mark = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).view_as(y).cos()
    return torch.autograd.grad(y, (x, weight), mark)


@given(case=cases())
def test_gradients(case: Case, assert_same: Callable[..., None]) -> None:
    x, weight = case.inputs()
    expected = gradients(lambda x, weight: unfolded(x, weight, case.left), x, weight)
    walks = EVERYWHERE + ((correlate_grouped,) if weight.shape[:2] == (1, 1) else ())
    for walk in walks:
        found = gradients(lambda x, weight, walk=walk: walk(x, weight, case.left), x, weight)
        for actual, wanted in zip(found, expected, strict=True):
            assert_same(actual, wanted)


@given(case=cases(), num_positions=st.integers(1, 5), seed=st.integers(0, 99))
def test_gradients_at_positions(case: Case, num_positions: int, seed: int, assert_same: Callable[..., None]) -> None:
    torch.manual_seed(seed)
    x, weight = case.inputs(num_positions)
    positions = torch.randint(case.length, (case.rows, num_positions))

    def selected(x: Tensor, weight: Tensor) -> Tensor:
        """All steps with each asked position's kernel in turn, then the one that asked."""
        kernels = weight.expand(case.rows, num_positions, -1, -1)
        rows = torch.arange(case.rows)
        return torch.stack(
            [
                unfolded(x, kernels[:, place : place + 1], case.left)[rows, positions[:, place]]
                for place in range(num_positions)
            ],
            dim=1,
        )

    expected = gradients(selected, x, weight)
    for walk in AT_POSITIONS:
        found = gradients(lambda x, weight, walk=walk: walk(x, weight, case.left, positions), x, weight)
        for actual, wanted in zip(found, expected, strict=True):
            assert_same(actual, wanted)


@pytest.mark.parametrize("left", [1, 2, 3])
@pytest.mark.parametrize("walk", [*EVERYWHERE, correlate_grouped], ids=lambda walk: walk.__name__)
def test_gradients_are_derivatives(walk: Callable[..., Tensor], left: int) -> None:
    fixed = walk is correlate_grouped
    x, weight = Case(2, 3, 2, 1, 4, left, fixed_rows=fixed, fixed_steps=fixed).inputs()
    assert torch.autograd.gradcheck(
        lambda x, weight: walk(x, weight, left), (x.requires_grad_(), weight.requires_grad_())
    )


@pytest.mark.parametrize("walk", AT_POSITIONS, ids=lambda walk: walk.__name__)
def test_gradients_at_positions_are_derivatives(walk: Callable[..., Tensor]) -> None:
    x, weight = Case(2, 3, 2, 1, 3, 1).inputs(steps=2)
    positions = torch.tensor([[2, 0], [1, 1]])
    assert torch.autograd.gradcheck(
        lambda x, weight: walk(x, weight, 1, positions), (x.requires_grad_(), weight.requires_grad_())
    )


def test_channels_share_kernels_in_contiguous_blocks() -> None:
    """Head h looks h steps back, so every channel shows which head it belongs to."""
    x = torch.randn(1, 5, 6, dtype=torch.float64)
    kernel = torch.eye(3, dtype=torch.float64).flip(1)[None, None]
    for walk in (*EVERYWHERE, correlate_grouped):
        y = walk(x, kernel, 2)
        for channel, back in enumerate([0, 0, 1, 1, 2, 2]):
            assert torch.equal(y[0, back:, channel], x[0, : 5 - back, channel])
            assert not y[0, :back, channel].any()


@pytest.mark.parametrize(
    ("taps", "head_width", "is_fixed", "num_positions", "chosen"),
    [
        (TAPS_UP_TO, BAND_FROM, False, None, "correlate_taps"),
        (TAPS_UP_TO + 1, BAND_FROM, False, None, "correlate_banded"),
        (TAPS_UP_TO + 1, BAND_FROM - 1, False, None, "correlate_taps"),
        (TAPS_UP_TO, GROUPED_BELOW, True, None, "correlate_taps"),
        (TAPS_UP_TO + 1, GROUPED_BELOW, True, None, "correlate_banded"),
        (TAPS_UP_TO, GROUPED_BELOW - 1, True, None, "correlate_grouped"),
        (TAPS_UP_TO + 1, 3, False, 1, "correlate_windows"),
        (3, 3, False, 1, "correlate_windows"),
        (3, 3, False, 2, "correlate_gathered"),
    ],
)
def test_the_shape_picks_the_walk(
    taps: int,
    head_width: int,
    is_fixed: bool,
    num_positions: int | None,
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(2, 4, 2 * head_width, dtype=torch.float64)
    weight = torch.randn(*((1, 1) if is_fixed else (2, num_positions or 4)), 2, taps, dtype=torch.float64)
    positions = None if num_positions is None else torch.zeros(2, num_positions, dtype=torch.long)
    answer = torch.full((2, num_positions or 4, 2 * head_width), 7.0, dtype=torch.float64)
    monkeypatch.setattr(correlation, chosen, lambda *_: answer)
    assert torch.equal(correlate(x, weight, left=0, positions=positions), answer)


@pytest.mark.parametrize("left", [0, 3, 6])
@pytest.mark.parametrize("length", [1, 5, 40])
def test_fixed_kernels_in_single_precision(left: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has a convolution of its own for them, which float64 does not take."""
    x, weight = torch.randn(2, length, 2 * GROUPED_BELOW), torch.randn(1, 1, 2, 7)
    expected = unfolded(x.double(), weight.double(), left)
    torch.testing.assert_close(correlate(x, weight, left=left, positions=None).double(), expected, rtol=0, atol=3e-5)
    monkeypatch.setattr(correlation, "correlate_grouped", lambda *_: x)
    assert (correlate(x, weight, left=left, positions=None) is x) == torch.backends.mkldnn.is_available()
