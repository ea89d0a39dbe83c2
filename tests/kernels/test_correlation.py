"""All ways of summing over taps agree with plain loops, forward and backward, whatever the shape."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from depthwise.kernels import correlation
from depthwise.kernels.correlation import (
    BAND_FROM,
    BANDED_FROM,
    BANDED_FROM_LENGTH,
    BANDED_UP_TO,
    BLOCK,
    GROUPED_BELOW,
    PIECES_FROM,
    TAPS_UP_TO,
    correlate,
    correlate_banded,
    correlate_gathered,
    correlate_grouped,
    correlate_pieces,
    correlate_taps,
    correlate_windows,
)

EVERYWHERE = (correlate_taps, correlate_banded)
FORWARD = (*EVERYWHERE, correlate_pieces)
"""The last one has no gradient."""
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
    for walk in FORWARD:
        assert_same(walk(x, weight, case.left), expected)
    assert_same(correlate(x, weight, left=case.left, positions=None), expected)


@corners
def test_corners(case: Case, sum_over_taps: Callable[..., Tensor], assert_same: Callable[..., None]) -> None:
    x, weight = case.inputs()
    expected = sum_over_taps(x, weight, case.left)
    for walk in FORWARD:
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
    for walk in (*FORWARD, correlate_grouped):
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


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("taps", [1, 2, 3, 7, 31, 63])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 500])
def test_pieces(
    length: int,
    taps: int,
    is_causal: bool,
    heads: int,
    sum_over_taps: Callable[..., Tensor],
    assert_same: Callable[..., None],
) -> None:
    """One head or one for each channel; kernels for each row and step, or shared."""
    left = taps - 1 if is_causal else (taps - 1) // 2
    for fixed_rows, fixed_steps in ((False, False), (False, True), (True, False), (True, True)):
        x, weight = Case(2, length, heads, 4 // heads, taps, left, fixed_rows, fixed_steps).inputs()
        assert_same(correlate_pieces(x, weight, left), sum_over_taps(x, weight, left))


@pytest.mark.parametrize("fixed_rows", [False, True])
@pytest.mark.parametrize("fixed_steps", [False, True])
def test_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch, fixed_rows: bool, fixed_steps: bool) -> None:
    """However few steps of however few rows they hold, all rows see their own inputs and kernels."""
    for length in (5, BLOCK, 3 * BLOCK + 1):
        x, weight = Case(5, length, 2, 3, 9, 3, fixed_rows, fixed_steps).inputs()
        expected = unfolded(x, weight, 3)
        for size in (BLOCK, 2 * BLOCK, 4 * BLOCK, 64 * BLOCK):
            monkeypatch.setattr(correlation, "PIECE", size)
            torch.testing.assert_close(correlate_pieces(x, weight, 3), expected)


def test_pieces_of_inputs_that_lie_otherwise() -> None:
    """Channels first, every second step, or one row seen several times."""
    _, weight = Case(2, 70, 2, 3, 9, 4).inputs()
    source = torch.randn(2, 6, 140, dtype=torch.float64)
    for x in (source.transpose(1, 2)[:, :70], source.transpose(1, 2)[:, ::2], source[:1, :, :70].mT.expand(2, -1, -1)):
        torch.testing.assert_close(correlate_pieces(x, weight, 4), unfolded(x, weight, 4))


def test_rows_of_pieces_are_alone() -> None:
    """Neither other rows nor what they hold change a row."""
    x, weight = Case(7, 70, 2, 3, 31, 15).inputs()
    expected = correlate_pieces(x, weight, 15)
    x[1::2] = torch.nan
    assert torch.equal(correlate_pieces(x, weight, 15)[::2], expected[::2])
    for row in range(0, 7, 2):
        alone = correlate_pieces(x[row : row + 1], weight[row : row + 1], 15)
        torch.testing.assert_close(alone, expected[row : row + 1])


class Allocations(TorchDispatchMode):
    """Elements of every storage that operators make."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        result = function(*arguments, **(options or {}))
        if isinstance(result, Tensor) and not function.is_view and not function._schema.is_mutable:
            self.sizes.append(result.numel())
        return result


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_memory_of_pieces(rows: int, is_fixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is all that grows with the length; what else there is, is there for one piece."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    largest = []
    for length in (4096, 8192):
        x = torch.randn(rows, length, 16)
        weight = torch.randn(*((1, 1) if is_fixed else (rows, length)), 2, 31)
        with Allocations() as made:
            correlate_pieces(x, weight, 15)
        assert made.sizes.count(x.numel()) == 1
        assert max(made.sizes) == x.numel()
        largest.append(max(size for size in made.sizes if size < x.numel()))
    assert largest[0] == largest[1]
    assert largest[0] <= 2 * correlation.PIECE * 2 * (BLOCK + 31)


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
    for walk in (*FORWARD, correlate_grouped):
        y = walk(x, kernel, 2)
        for channel, back in enumerate([0, 0, 1, 1, 2, 2]):
            assert torch.equal(y[0, back:, channel], x[0, : 5 - back, channel])
            assert not y[0, :back, channel].any()


def test_nothing_needs_no_walk() -> None:
    """Neither rows nor steps."""
    for rows, length in ((0, 5), (2, 0)):
        x, weight = torch.zeros(rows, length, 64), torch.zeros(rows, length, 2, 31)
        assert correlate(x, weight, left=3, positions=None).shape == x.shape


@pytest.mark.parametrize(
    ("taps", "head_width", "is_fixed", "num_positions", "chosen"),
    [
        (TAPS_UP_TO, BAND_FROM, False, None, "correlate_taps"),
        (TAPS_UP_TO + 1, BAND_FROM, False, None, "correlate_banded"),
        (TAPS_UP_TO + 1, BAND_FROM - 1, False, None, "correlate_taps"),
        (TAPS_UP_TO, GROUPED_BELOW, True, None, "correlate_taps"),
        (TAPS_UP_TO + 1, GROUPED_BELOW, True, None, "correlate_banded"),
        (TAPS_UP_TO, GROUPED_BELOW - 1, True, None, "correlate_grouped"),
        (BANDED_FROM, GROUPED_BELOW - 1, True, None, "correlate_grouped"),
        (TAPS_UP_TO + 1, 3, False, 1, "correlate_windows"),
        (3, 3, False, 1, "correlate_windows"),
        (3, 3, False, 2, "correlate_gathered"),
    ],
)
@pytest.mark.parametrize("differentiated", ["x", "weight", "both", "neither", "off"])
def test_the_shape_picks_the_walk(
    taps: int,
    head_width: int,
    is_fixed: bool,
    num_positions: int | None,
    chosen: str,
    differentiated: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And at single positions whether anything will be differentiated, since windows are not kept for it."""
    x = torch.randn(2, 4, 2 * head_width, dtype=torch.float64, requires_grad=differentiated in ("x", "both", "off"))
    kernels = torch.randn(*((1, 1) if is_fixed else (2, num_positions or 4)), 2, taps, dtype=torch.float64)
    weight = kernels.requires_grad_(differentiated in ("weight", "both", "off"))
    positions = None if num_positions is None else torch.zeros(2, num_positions, dtype=torch.long)
    answer = torch.full((2, num_positions or 4, 2 * head_width), 7.0, dtype=torch.float64)
    if chosen == "correlate_gathered" and differentiated == "off":
        chosen = "correlate_windows"
    monkeypatch.setattr(correlation, chosen, lambda *_: answer)
    with torch.set_grad_enabled(differentiated != "off"):
        assert torch.equal(correlate(x, weight, left=0, positions=positions), answer)


@pytest.mark.parametrize("differentiated", ["x", "weight", "both", "neither", "off"])
@pytest.mark.parametrize("length", [PIECES_FROM // 2, PIECES_FROM // 2 + 1])
def test_many_positions_go_by_pieces(length: int, differentiated: str) -> None:
    """Where nobody differentiates: bands are kept for gradients."""
    x = torch.randn(2, length, 2 * BAND_FROM, requires_grad=differentiated in ("x", "both", "off"))
    kernels = torch.randn(2, length, 2, TAPS_UP_TO + 1)
    weight = kernels.requires_grad_(differentiated in ("weight", "both", "off"))
    in_pieces = differentiated in ("neither", "off") and 2 * length >= PIECES_FROM
    with torch.set_grad_enabled(differentiated != "off"):
        assert correlation._walk_everywhere(x, weight, 0) is (correlate_pieces if in_pieces else correlate_banded)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("rows", "length", "left", "on_one_thread", "on_several"),
    [
        (2, BANDED_UP_TO // 2, 15, correlate_banded, correlate_banded),
        (2, BANDED_FROM_LENGTH - 1, 15, correlate_grouped, correlate_grouped),
        (2, BANDED_FROM_LENGTH, 15, correlate_pieces, correlate_grouped),
        (2, BANDED_UP_TO, 30, correlate_pieces, correlate_pieces),
    ],
)
def test_long_fixed_kernels_leave_the_grouped_convolution(
    threads: int,
    rows: int,
    length: int,
    left: int,
    on_one_thread: Callable[..., Tensor],
    on_several: Callable[..., Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where few positions are asked for, or rows are long and one thread does it all, or one side alone has zeros."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    x, weight = torch.randn(rows, length, 2 * GROUPED_BELOW), torch.randn(1, 1, 2, BANDED_FROM)
    assert correlation._walk_everywhere(x, weight, left) is (on_one_thread if threads == 1 else on_several)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
@pytest.mark.parametrize(
    ("taps", "head_width", "needs_gradient"),
    [
        (BANDED_FROM, GROUPED_BELOW, True),
        (BANDED_FROM - 1, GROUPED_BELOW, False),
        (BANDED_FROM, GROUPED_BELOW - 1, False),
    ],
)
def test_other_fixed_kernels_stay_with_it(taps: int, head_width: int, needs_gradient: bool) -> None:
    x, weight = torch.randn(2, 4, 2 * head_width), torch.randn(1, 1, 2, taps)
    assert correlation._walk_everywhere(x.requires_grad_(needs_gradient), weight, taps // 2) is correlate_grouped


class Convolution(nn.Module):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return correlate(x, weight, left=15, positions=None)


@torch.no_grad()
@pytest.mark.usefixtures("_unchecked_shapes")
def test_programs_are_not_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over pieces would be a program for one length."""
    monkeypatch.delattr(correlation, "correlate_pieces")
    x, weight = torch.randn(2, PIECES_FROM, 64), torch.randn(2, PIECES_FROM, 2, 31)
    expected = unfolded(x, weight, 15)
    compiled = torch.compile(Convolution(), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight), expected)
    torch.testing.assert_close(torch.export.export(Convolution(), (x, weight)).module()(x, weight), expected)
    with pytest.raises(NameError):
        correlate(x, weight, left=15, positions=None)


@torch.no_grad()
@pytest.mark.usefixtures("_unchecked_shapes")
def test_fixed_kernels_are_exported_for_any_length() -> None:
    x, weight = torch.randn(2, 40, 2 * GROUPED_BELOW), torch.randn(1, 1, 2, 31)
    length = torch.export.Dim("length", min=2)
    program = torch.export.export(Convolution(), (x, weight), dynamic_shapes=({1: length}, None)).module()
    for steps in (3, 40, 700):
        x = torch.randn(2, steps, 2 * GROUPED_BELOW)
        torch.testing.assert_close(program(x, weight), unfolded(x, weight, 15), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("left", [0, 3, 6])
@pytest.mark.parametrize("length", [1, 5, 40])
def test_fixed_kernels_in_single_precision(left: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has a convolution of its own for them, which float64 does not take."""
    x, weight = torch.randn(2, length, 2 * GROUPED_BELOW), torch.randn(1, 1, 2, 7)
    expected = unfolded(x.double(), weight.double(), left)
    torch.testing.assert_close(correlate(x, weight, left=left, positions=None).double(), expected, rtol=0, atol=3e-5)
    monkeypatch.setattr(correlation, "correlate_grouped", lambda *_: x)
    assert (correlate(x, weight, left=left, positions=None) is x) == torch.backends.mkldnn.is_available()
