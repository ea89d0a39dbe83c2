"""The Triton kernels for attention against a softmax in float64: on a GPU, or on the CPU by Triton's interpreter."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from depthwise.errors import BackendUnavailable
from depthwise.kernels import attend, short_attention, use_backend
from depthwise.kernels.attention import attend_source
from depthwise.kernels.backend import pick_attention
from depthwise.kernels.short_attention import Sight, cut, num_warps, plan

IS_FAST = torch.cuda.is_available()
"""The interpreter takes milliseconds for every program of a kernel: on a CPU each test runs for few shapes."""
DEVICE = "cuda" if IS_FAST else "cpu"
TOLERANCES = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
HALF = torch.float16
STEPS = (1, 2, 7, 24, 32, 48, 65, 128)
WIDTHS = (16, 32, 64, 128)
SHAPES = [(steps, steps, width) for steps in STEPS for width in WIDTHS]
SHAPES += [(queries, steps, 64) for steps in STEPS for queries in STEPS if queries < steps]
PAIRS = [(queries, steps, 64) for queries in STEPS for steps in STEPS] + [(24, 65, width) for width in WIDTHS]
FEW_SHAPES = [
    *((1, 1, 16), (2, 2, 128), (7, 7, 32), (24, 24, 128), (32, 32, 64), (65, 65, 16), (128, 128, 32)),
    *((1, 32, 16), (7, 24, 32), (24, 65, 16)),
]
FEW_PAIRS = [(1, 7, 16), (24, 2, 64), (65, 32, 32)]
OPTIONS: dict[str, dict[str, Any]] = {
    "all": {"causal": False},
    "causal": {"causal": True},
    "window": {"causal": False, "window": 5},
    "causal window": {"causal": True, "window": 3},
}


@dataclass(frozen=True)
class Case:
    """Queries, keys, values and an outgoing gradient as a model makes them: (B, T, H, d) with its axes swapped."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    outgoing: Tensor
    valid: Tensor

    @property
    def states(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.queries, self.keys, self.values


def randn(rows: int, heads: int, steps: int, width: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.randn(rows, steps, heads, width, device=DEVICE).to(dtype).transpose(1, 2)


def a_case(num_queries: int, length: int, width: int, dtype: torch.dtype = HALF, heads: int = 2) -> Case:
    """Three rows: some padding, padding but for the first step, padding alone."""
    states = (randn(3, heads, steps, width, dtype) for steps in (num_queries, length, length, num_queries))
    valid = torch.rand(3, length, device=DEVICE) < 0.6
    valid[1:] = False
    valid[:2, 0] = True
    return Case(*states, valid)


def steps_seen(
    num_queries: int, length: int, *, causal: bool, window: int | None = None, valid: Tensor | None = None
) -> Tensor:
    """(B or 1, 1, P, L), from the definition."""
    readers = torch.arange(length - num_queries, length, device=DEVICE)
    distance = readers[:, None] - torch.arange(length, device=DEVICE)
    seen = (distance >= 0) | (not causal)
    if window is not None:
        seen = seen & (distance < window if causal else distance.abs() <= (window - 1) / 2)
    seen = seen[None] if valid is None else seen & valid[:, None]
    return (seen | (distance == 0))[:, None]


def exact(case: Case, seen: Tensor, kept: Tensor | None = None, dropout: float = 0.0) -> list[Tensor]:
    """Output and gradients in float64; a reader that sees nothing gets zeros."""
    queries, keys, values = (each.detach().double().requires_grad_() for each in case.states)
    scores = (queries @ keys.mT / queries.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
    terms = (scores - scores.amax(-1, keepdim=True).clamp(min=-1e300).detach()).exp()
    weights = terms / terms.sum(-1, keepdim=True).clamp(min=1e-300)
    if kept is not None:
        weights = weights * kept / (1 - dropout)
    y = weights @ values
    return [y.detach(), *torch.autograd.grad(y, (queries, keys, values), case.outgoing.double())]


def found(case: Case, *, over_source: bool = False, **options: Any) -> list[Tensor]:
    """Output and gradients by the kernels. Whatever they do not write is not a number."""
    leaves = [each.detach().requires_grad_() for each in case.states]
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        y = (attend_source if over_source else attend)(*leaves, backend="triton", **options)
        return [y.detach(), *torch.autograd.grad(y, leaves, case.outgoing)]
    finally:
        torch.use_deterministic_algorithms(False)


def assert_close(ours: list[Tensor], theirs: list[Tensor], dtype: torch.dtype = HALF) -> None:
    """By the norm of the difference, relative to that of the exact result; where that is zero, so are we."""
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == dtype
        assert one.shape == other.shape
        error, norm = (one.double() - other).norm().item(), other.norm().item()
        assert error <= TOLERANCES[dtype] * (norm if norm > 1e-9 else 1.0), (error, norm)


def precisions(shape: tuple[int, int, int]) -> list[torch.dtype]:
    """Those to test. The interpreter holds bfloat16 as integers and multiplies those."""
    return list(TOLERANCES) if IS_FAST and shape[2] == 64 else [HALF]


# Numbers


SELF_CASES = [
    (shape, kind, padded, dtype)
    for index, shape in enumerate(SHAPES if IS_FAST else FEW_SHAPES)
    for turn, kind in enumerate(OPTIONS)
    for padded in (False, True)
    if IS_FAST or (index + turn) % 2 == padded
    for dtype in precisions(shape)
]


@pytest.mark.parametrize(("shape", "kind", "padded", "dtype"), SELF_CASES, ids=str)
def test_self_attention(shape: tuple[int, int, int], kind: str, padded: bool, dtype: torch.dtype) -> None:
    num_queries, length, width = shape
    case = a_case(num_queries, length, width, dtype)
    options = OPTIONS[kind] | ({"valid": case.valid} if padded else {})
    seen = steps_seen(num_queries, length, **options)
    assert_close(found(case, **options), exact(case, seen), dtype)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(shape, dtype) for shape in (PAIRS if IS_FAST else FEW_PAIRS) for dtype in precisions(shape)],
    ids=str,
)
def test_attention_over_a_source(shape: tuple[int, int, int], padded: bool, dtype: torch.dtype) -> None:
    num_queries, length, width = shape
    case = a_case(num_queries, length, width, dtype)
    seen = case.valid[:, None, None] if padded else torch.ones(1, 1, 1, length, dtype=torch.bool, device=DEVICE)
    ours = found(case, over_source=True, valid=case.valid if padded else None)
    assert_close(ours, exact(case, seen), dtype)


def test_a_source_of_padding_alone_gives_zeros_as_torch_does() -> None:
    case = a_case(3, 5, 16)
    ours = found(case, over_source=True, valid=case.valid)
    with torch.no_grad():
        theirs = attend_source(*(each.float() for each in case.states), valid=case.valid, backend="reference")
    assert all(each[2].eq(0).all() for each in (*ours, theirs))


@pytest.mark.parametrize("width", WIDTHS if IS_FAST else [16])
def test_tiles_that_do_not_fit_are_read_again(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case, options = a_case(24, 24, width), {"causal": True, "dropout": 0.25}
    torch.manual_seed(1)
    once = found(case, valid=case.valid, **options)
    monkeypatch.setattr(short_attention, "shared_memory", lambda device: 0)
    plan.cache_clear()
    cut.cache_clear()
    torch.manual_seed(1)
    again = found(case, valid=case.valid, **options)
    assert cut(True, 2, width, 32, 32, True, (True, True, True, True)).constants["RELOAD"]
    assert cut.cache_info().currsize == 2
    monkeypatch.undo()
    plan.cache_clear()
    assert_close(again, [each.double() for each in once])


def test_large_scores_stay_finite() -> None:
    case = a_case(7, 7, 16)
    case = Case(case.queries * 100, case.keys * 100, case.values, case.outgoing, case.valid)
    ours = found(case, causal=True)
    assert all(each.isfinite().all() for each in ours)
    assert_close(ours[:1], exact(case, steps_seen(7, 7, causal=True))[:1])


# Memory


def strided(x: Tensor) -> Tensor:
    """The same numbers with other ones between them, along every axis."""
    roomy = x.new_full([2 * size for size in x.shape], torch.nan)
    view = roomy[::2, ::2, ::2, ::2]
    return view.copy_(x)


def test_states_that_lie_anywhere() -> None:
    """Strided along every axis, one after the other, or the same keys for all heads."""
    case, options = a_case(7, 24, 16), {"causal": True}
    seen = steps_seen(7, 24, **options)
    apart = Case(*(strided(each) for each in (*case.states, case.outgoing)), case.valid)
    assert_close(found(apart, **options), exact(case, seen))
    dense = Case(*(each.contiguous() for each in (*case.states, case.outgoing)), case.valid)
    assert_close(found(dense, **options), exact(case, seen))
    shared = Case(case.queries, case.keys[:, :1].expand_as(case.keys), case.values, case.outgoing, case.valid)
    assert_close(found(shared, **options), exact(shared, seen))
    shifted = torch.empty(case.keys.numel() + 1, dtype=HALF, device=DEVICE)[1:].view(case.keys.shape).copy_(case.keys)
    odd = Case(case.queries, shifted, case.values, case.outgoing, case.valid)
    assert_close(found(odd, **options), exact(case, seen))


def test_masks_that_lie_anywhere() -> None:
    case = a_case(7, 7, 16)
    seen = steps_seen(7, 7, causal=False, valid=case.valid)
    across = case.valid.t().contiguous().t()
    within = torch.nn.functional.pad(case.valid, (3, 2), value=True)[:, 3:-2]
    for valid in (across, within):
        assert_close(found(case, causal=False, valid=valid), exact(case, seen))


def test_gradients_that_are_the_same_everywhere() -> None:
    """As a sum has them: one number in memory."""
    case = a_case(7, 7, 16)
    case = Case(*case.states, torch.ones((), dtype=HALF, device=DEVICE).expand_as(case.queries), case.valid)
    assert_close(found(case, causal=True), exact(case, steps_seen(7, 7, causal=True)))


def test_heads_are_put_side_by_side_without_a_copy() -> None:
    case = a_case(7, 7, 16)
    y = attend(*case.states, causal=True, backend="triton")
    assert y.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("count", [2, 3])
def test_gradients_lie_side_by_side_where_states_do(count: int) -> None:
    rows, heads, steps, width = 2, 3, 7, 16
    one = torch.randn(rows, steps, count * heads * width, device=DEVICE).to(HALF).requires_grad_()
    parts = [part.unflatten(-1, (heads, width)).transpose(1, 2) for part in one.chunk(count, -1)]
    states = parts if count == 3 else [randn(rows, heads, steps, width), *parts]
    outgoing = randn(rows, heads, steps, width)
    case = Case(*(each.detach() for each in states), outgoing, torch.ones(0))
    y = attend(*states, causal=True, backend="triton")
    gradients = torch.autograd.grad(y, parts, outgoing)
    assert_close(list(gradients), exact(case, steps_seen(steps, steps, causal=True))[-count:])
    merged = [each.transpose(1, 2).flatten(2) for each in gradients]
    assert [each.data_ptr() - merged[0].data_ptr() for each in merged] == [
        index * heads * width * 2 for index in range(count)
    ]


def test_what_needs_no_gradient_gets_none() -> None:
    case = a_case(7, 7, 16)
    queries = case.queries.detach().requires_grad_()
    y = attend(queries, case.keys, case.values, causal=True, backend="triton")
    y.backward(case.outgoing)
    assert queries.grad is not None
    assert_close([queries.grad], exact(case, steps_seen(7, 7, causal=True))[1:2])


def test_gradients_have_none_of_their_own() -> None:
    queries, keys, values = (each.detach().requires_grad_() for each in a_case(3, 3, 16).states)
    y = attend(queries, keys, values, causal=True, backend="triton")
    (gradient,) = torch.autograd.grad(y.float().square().sum(), queries, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# Dropout


def kept_by(seed: int, rows: int, heads: int, num_queries: int, length: int, dropout: float) -> Tensor:
    """The mask of a call, read off by values that are the identity while all scores are equal: (B, H, P, L)."""
    width = next(width for width in WIDTHS if width >= length)
    queries, keys = (torch.zeros(rows, heads, steps, width, device=DEVICE).to(HALF) for steps in (num_queries, length))
    identity = torch.eye(length, width, device=DEVICE).to(HALF).expand(rows, heads, -1, -1)
    torch.manual_seed(seed)
    mixed = attend_source(queries, keys, identity, dropout=dropout, backend="triton")[..., :length]
    torch.testing.assert_close(
        mixed.double(), (mixed != 0) / ((1 - dropout) * length), rtol=1e-3, atol=0, check_dtype=False
    )
    return mixed != 0


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_so_many_weights_are_dropped(dropout: float) -> None:
    kept = kept_by(0, 8, 4, 32, 32, dropout).double()
    sigma = (dropout * (1 - dropout)) ** 0.5
    assert abs(kept.mean().item() - (1 - dropout)) < 4 * sigma / kept.numel() ** 0.5
    for axis in range(4):  # no row, head, reader or step is favoured
        means = kept.transpose(0, axis).flatten(1).mean(1)
        assert (means - (1 - dropout)).abs().max() < 5 * sigma / (kept.numel() / len(means)) ** 0.5
    for axis in range(4):  # neighbours are dropped independently of each other
        first, second = (kept.narrow(axis, start, kept.shape[axis] - 1) for start in (0, 1))
        together = ((first - kept.mean()) * (second - kept.mean())).mean().item()
        assert abs(together) < 5 * sigma**2 / first.numel() ** 0.5


def test_every_call_draws_anew() -> None:
    first, second = (kept_by(seed, 2, 2, 7, 16, 0.5) for seed in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(first, kept_by(0, 2, 2, 7, 16, 0.5))


@pytest.mark.parametrize("kind", ["source", *OPTIONS])
@pytest.mark.parametrize(
    ("num_queries", "length", "width"),
    [(7, 24, 32), (32, 32, 128), (65, 128, 64)] if IS_FAST else [(7, 24, 32)],
)
def test_both_passes_drop_the_same_weights(num_queries: int, length: int, width: int, kind: str) -> None:
    case, dropout = a_case(num_queries, length, width), 0.3
    kept = kept_by(5, 3, 2, num_queries, length, dropout)
    torch.manual_seed(5)
    if kind == "source":
        seen = case.valid[:, None, None]
        ours = found(case, over_source=True, valid=case.valid, dropout=dropout)
    else:
        options = OPTIONS[kind] | {"valid": case.valid}
        seen = steps_seen(num_queries, length, **options)
        ours = found(case, dropout=dropout, **options)
    assert_close(ours, exact(case, seen, kept, dropout))


def test_all_weights_may_be_dropped() -> None:
    assert all(each.eq(0).all() for each in found(a_case(7, 7, 16), causal=True, dropout=1.0))


# Launches


def test_few_kernels_serve_many_batches() -> None:
    plan.cache_clear()
    cut.cache_clear()
    for rows, steps in ((1, 17), (2, 32)):
        states = [randn(rows, 2, steps, 16).requires_grad_() for _ in range(3)]
        for window in (None, 3):
            attend(*states, causal=True, window=window, backend="triton").sum().backward()
    assert cut.cache_info().currsize == 2  # one for each pass
    assert cut(True, 2, 16, 32, 32, False, (True, False, True, False)).compiled.keys() <= {
        (torch.cuda.current_device() if IS_FAST else -1, *[HALF] * 9)
    }
    assert cut.cache_info().currsize == 2


def test_warps() -> None:
    assert [num_warps(steps, steps, 128) for steps in (16, 32, 64, 128)] == [2, 4, 4, 8]
    assert [num_warps(32, 32, width) for width in WIDTHS] == [1, 1, 2, 4]


def test_what_a_reader_sees() -> None:
    far = short_attention.FAR
    assert Sight.within(None, causal=True) == (True, far, 0)
    assert Sight.within(4, causal=True) == (True, 3, 0)
    assert Sight.within(None, causal=False) == (True, far, far)
    assert Sight.within(5, causal=False) == (True, 2, 2)


# Which kernels run


@pytest.fixture
def _not_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


def refusal(*states: Tensor, valid: Tensor | None = None, listed: bool = False, is_self: bool = True) -> str:
    options: dict[str, Any] = {"listed": listed, "is_self": is_self}
    with pytest.raises(BackendUnavailable) as raised:
        pick_attention("triton", *states, valid, **options)
    assert pick_attention("auto", *states, valid, **options) == "reference"
    with use_backend("triton"):
        assert pick_attention("auto", *states, valid, **options) == "reference"
    return str(raised.value)


def test_what_is_not_served() -> None:
    def state(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, device=DEVICE)

    fits = state(2, 2, 7, 16)
    reason = "it knows 1 to 128 steps but got 129 and 129; take shorter sequences"
    whole = f'the kernel back end "triton" cannot serve this: {reason}, or take "auto"'
    assert refusal(*[state(2, 2, 129, 16)] * 3) == whole
    assert "it knows 1 to 128 steps but got 7 and 129" in refusal(fits, *[state(2, 2, 129, 16)] * 2)
    assert "it knows 1 to 128 steps but got 0 and 7" in refusal(state(2, 2, 0, 16), fits, fits)
    assert "it knows 1 to 128 steps but got 7 and 0" in refusal(fits, *[state(2, 2, 0, 16)] * 2, is_self=False)
    assert "it knows heads of 16, 32, 64, 128 channels but got 24" in refusal(*[state(2, 2, 7, 24)] * 3)
    single = state(2, 2, 7, 16, dtype=torch.float32)
    message = "its queries, keys and values are all float16 or all bfloat16 but these are torch.float16, torch.float32"
    assert message in refusal(fits, single, fits)
    assert "but these are torch.float32, torch.float32, torch.float32; convert them" in refusal(*[single] * 3)
    assert "it knows no listed positions; give all steps" in refusal(fits, fits, fits, listed=True)
    assert "8 queries cannot be the last of 7 steps" in refusal(state(2, 2, 8, 16), fits, fits)
    assert pick_attention("triton", state(2, 2, 8, 16), fits, fits, None, listed=False, is_self=False) == "triton"
    assert "differ in rows, heads or channels; expand them" in refusal(fits, *[state(1, 2, 7, 16)] * 2)
    assert "differ in rows, heads or channels; expand them" in refusal(fits, fits, state(2, 2, 6, 16))
    mask = torch.ones(1, 7, dtype=torch.bool, device=DEVICE)
    assert "the mask is not of the shape of rows and steps; expand it" in refusal(fits, fits, fits, valid=mask)


def test_rows_that_are_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthwise.kernels.backend._missing", lambda *_: None)
    states = torch.empty(2, 128, 2**20, 16, dtype=HALF, device="meta").transpose(1, 2)[:, :3]
    assert "takes 2147483648 elements or more in memory; copy it" in refusal(*[states] * 3)


def test_subclasses_of_tensors_take_torch() -> None:
    class Marked(Tensor):
        pass

    states = [each.as_subclass(Marked) for each in a_case(7, 7, 16).states]
    assert "it knows neither compilers nor subclasses of tensors; call it with plain tensors" in refusal(*states)


@pytest.mark.usefixtures("_not_compiled", "_unchecked_shapes")
def test_compilers_take_torch() -> None:
    case = a_case(7, 7, 16)
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    with use_backend("triton"):
        y = compiled(*case.states, causal=True)
        assert pick_attention("auto", *case.states, None, listed=False, is_self=True) == "triton"
    with use_backend("reference"):
        assert torch.equal(y, attend(*case.states, causal=True))


def test_an_unknown_back_end() -> None:
    with pytest.raises(BackendUnavailable, match=re.escape('there is no kernel back end "abacus" in this version')):
        attend(*a_case(7, 7, 16).states, causal=True, backend="abacus")


def is_ours(y: Tensor) -> bool:
    return "ShortAttention" in type(y.grad_fn.next_functions[0][0]).__name__ if y.grad_fn else False


def test_the_process_chooses() -> None:
    """`reference` switches it off; `triton` takes it wherever it serves, and torch elsewhere."""
    states = [each.detach().requires_grad_() for each in a_case(7, 7, 16).states]
    with use_backend("triton"):
        assert is_ours(attend(*states, causal=True))
        assert is_ours(attend_source(*states))
        assert not is_ours(attend(*(each.float() for each in states), causal=True))
        assert not is_ours(attend(*states, causal=True, backend="reference"))
    with use_backend("reference"):
        assert not is_ours(attend(*states, causal=True))
        assert not is_ours(attend_source(*states))
        assert is_ours(attend(*states, causal=True, backend="triton"))


@pytest.mark.skipif(IS_FAST, reason="tells what happens without a GPU")
def test_auto_takes_torch_on_a_cpu() -> None:
    states = [each.detach().requires_grad_() for each in a_case(7, 7, 16).states]
    assert not is_ours(attend(*states, causal=True))


@pytest.mark.gpu
def test_auto_takes_it_in_training() -> None:
    states = [each.detach().requires_grad_() for each in a_case(7, 7, 16).states]
    assert is_ours(attend(*states, causal=True))
    assert is_ours(attend_source(*states, dropout=0.1))
    with torch.no_grad():
        assert pick_attention("auto", *states, None, listed=False, is_self=True) == "reference"
    assert pick_attention("auto", *a_case(7, 7, 16).states, None, listed=False, is_self=True) == "reference"


@pytest.mark.gpu
def test_recorded_graphs_draw_anew() -> None:
    """Both passes are recorded, nothing waits for the GPU, and every replay has a mask of its own in both passes."""
    queries, keys = (torch.zeros(4, 2, 32, 32, device="cuda", dtype=HALF, requires_grad=True) for _ in range(2))
    values = torch.eye(32, device="cuda", dtype=HALF).expand(4, 2, -1, -1).clone().requires_grad_()
    outgoing = torch.ones_like(queries)

    def run() -> tuple[Tensor, Tensor]:
        y = attend(queries, keys, values, causal=False, dropout=0.5)
        return y.detach(), torch.autograd.grad(y, values, outgoing)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, gradient = run()
    masks = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        masks.append(y != 0)
        readers = (y != 0).sum(2, dtype=torch.float64)  # that kept a step: each passes on 2 / 32
        torch.testing.assert_close(
            gradient.double(), (readers / 16).unsqueeze(-1).expand_as(gradient), rtol=1e-3, atol=0
        )
    assert not torch.equal(*masks)
