"""The fused norm of a residual sum against torch's operators in float64: on a GPU, or by Triton's interpreter."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from depthwise.errors import BackendUnavailable, InputError
from depthwise.kernels import residual_norm, use_backend
from depthwise.kernels.plan import Plan
from depthwise.kernels.residual_norm import (
    IMPLEMENTATIONS,
    WIDEST,
    normalized_sum,
    plan_backward,
    plan_finish,
    plan_forward,
    residual_norm_reference,
)

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IS_FAST = torch.cuda.is_available()
TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}
EPSILON = 1e-5
on_gpu = pytest.mark.gpu


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def outcome(
    x: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor, outgoing: Tensor, *, by: str
) -> list[Tensor]:
    """Output, then gradients of x, branch (if any), weight and bias. Whatever Triton does not write is no number."""
    tensors = [each.detach().requires_grad_() for each in (x, branch, weight, bias) if each is not None]
    first, *middle, gamma, beta = tensors
    torch.use_deterministic_algorithms(by == "triton")  # fills new memory with NaN
    try:
        y = residual_norm(first, middle[0] if middle else None, gamma, beta, epsilon=EPSILON, backend=by)
        return [y.detach(), *torch.autograd.grad(y, tensors, outgoing.to(y.dtype))]
    finally:
        torch.use_deterministic_algorithms(False)


def assert_close(found: list[Tensor], exact: list[Tensor], tolerance: float) -> None:
    """By the norm of the difference, relative to that of the exact result; where that is none, ours is none too."""
    for ours, theirs in zip(found, exact, strict=True):
        error, norm = (ours.double() - theirs).norm().item(), theirs.norm().item()
        assert error <= tolerance * (norm if norm > 1e-9 else 10 * ours.numel() ** 0.5), (error, norm)


def check(x: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor) -> None:
    """Forward and every gradient, each in the precision of its tensor.

    Among many narrow rows there are some whose elements hardly differ: these carry the error, and the gradient.
    """
    given = [each for each in (x, branch, weight, bias) if each is not None]
    wider = x.dtype if branch is None else torch.promote_types(x.dtype, branch.dtype)
    outgoing = randn(*x.shape, dtype=wider)
    found = outcome(x, branch, weight, bias, outgoing, by="triton")
    doubles = [None if each is None else each.double() for each in (x, branch, weight, bias)]
    exact = outcome(*doubles, outgoing.double(), by="reference")
    assert [each.dtype for each in found] == [wider, *(each.dtype for each in given)]
    assert [each.shape for each in found[1:]] == [each.shape for each in given]
    tolerance = max(TOLERANCES[each.dtype] for each in given)
    assert_close(found, exact, max(tolerance, 1e-4) if x.shape[-1] < 16 else tolerance)


@pytest.mark.parametrize("width", [1, 3, 100, 128, 500, 512, 1025])
@pytest.mark.parametrize("has_branch", [False, True])
def test_awkward_widths(width: int, has_branch: bool) -> None:
    x = 3 * randn(7, width) + 1
    check(x, randn(7, width) if has_branch else None, randn(width), randn(width))


@pytest.mark.parametrize("num_rows", [0, 1, 7, 130])
def test_any_number_of_rows(num_rows: int) -> None:
    for width in (40, 513 if IS_FAST or num_rows < 100 else 300):
        check(randn(num_rows, width), randn(num_rows, width), randn(width), randn(width))


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=on_gpu)], ids=str)
def test_half_precision(dtype: torch.dtype) -> None:
    """All in half precision, or the states and parameters in float32, as autocast has it."""
    width = 72
    check(randn(2, 9, width, dtype=dtype), randn(2, 9, width, dtype=dtype), *(randn(2, width, dtype=dtype)))
    check(randn(2, 9, width), randn(2, 9, width, dtype=dtype), randn(width), randn(width))
    check(randn(2, 9, width, dtype=dtype), randn(2, 9, width), randn(width), randn(width))
    check(randn(2, 9, width, dtype=dtype), None, randn(width), randn(width))


@on_gpu
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("width", [1, 3, 64, 100, 128, 500, 512, 1024, 1025, 2048, 8191, 8192])
def test_everything_on_a_gpu(width: int, dtype: torch.dtype) -> None:
    for num_rows in (1, 7, 130, 4099):
        x, branch = randn(num_rows, width, dtype=dtype), randn(num_rows, width, dtype=dtype)
        weight, bias = randn(width, dtype=dtype), randn(width, dtype=dtype)
        check(x, branch, weight, bias)
        check(x, None, weight, bias)
        check(x.float(), branch, weight.float(), bias.float())


def test_the_widest_rows() -> None:
    check(randn(1, WIDEST), randn(1, WIDEST), randn(WIDEST), randn(WIDEST))


def test_tensors_that_lie_in_larger_ones() -> None:
    """x, branch and outgoing gradient with strides of their own; and one that was expanded from a number."""
    x, branch = randn(3, 20, 5).transpose(1, 2), randn(3, 5, 48)[..., 8:28]
    wide = randn(20, 2)
    check(x, branch, wide[:, 0], wide[:, 1])
    weight, bias = randn(20).requires_grad_(), randn(20).requires_grad_()
    y = residual_norm(x, branch, weight, bias, epsilon=EPSILON, backend="triton")
    shift = torch.autograd.grad(y.sum(), bias)[0]
    torch.testing.assert_close(shift, torch.full_like(shift, 15.0))


def test_far_from_zero() -> None:
    """The spread is not what is left of two large numbers."""
    x = randn(4, 100) + 1000
    y = residual_norm(x.requires_grad_(), None, randn(100) * 0 + 1, randn(100) * 0, epsilon=EPSILON, backend="triton")
    exact = F.layer_norm(x.double(), (100,), eps=EPSILON)
    assert (y - exact).norm() < 1e-4 * exact.norm()


# Dropout


def masked(dropout: float, num_rows: int = 64, width: int = 96) -> tuple[Tensor, Tensor, Tensor]:
    """The mask that the forward pass drew, told from ones that were dropped, and gradients of x and branch."""
    x = torch.zeros(num_rows, width, device=DEVICE, requires_grad=True)
    branch = torch.ones(num_rows, width, device=DEVICE, requires_grad=True)
    weight, bias = torch.ones(width, device=DEVICE), torch.zeros(width, device=DEVICE)
    y = residual_norm(x, branch, weight, bias, epsilon=EPSILON, dropout=dropout, backend="triton")
    return (y.detach() > 0, *torch.autograd.grad(y, (x, branch), randn(num_rows, width)))


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_both_passes_see_the_same_mask(dropout: float) -> None:
    mask, of_x, of_branch = masked(dropout)
    assert of_x.count_nonzero() == of_x.numel()
    torch.testing.assert_close(of_branch, torch.where(mask, of_x / (1 - dropout), 0.0))


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_as_many_are_dropped_as_should_be(dropout: float) -> None:
    """Overall, in every row and in every column, within five standard deviations; neighbours know nothing of each
    other."""
    mask = masked(dropout)[0].double()
    spread = (dropout * (1 - dropout)) ** 0.5
    for found in (mask.mean().view(1), mask.mean(0), mask.mean(1)):
        count = mask.numel() / found.numel()
        assert ((found - (1 - dropout)).abs() < 5 * spread / count**0.5).all()
    centred = (mask - mask.mean()) / spread
    for neighbours in ((centred[:, 1:], centred[:, :-1]), (centred[1:], centred[:-1])):
        product = neighbours[0] * neighbours[1]
        assert product.mean().abs() < 5 / product.numel() ** 0.5


def test_masks_are_drawn_anew_and_follow_torchs_seed() -> None:
    torch.manual_seed(3)
    first, second = masked(0.5)[0], masked(0.5)[0]
    torch.manual_seed(3)
    assert torch.equal(masked(0.5)[0], first)
    assert 0.4 < (first != second).double().mean() < 0.6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_dropout_is_that_of_its_mask(dtype: torch.dtype) -> None:
    """Forward and every gradient, once the mask is known."""
    torch.manual_seed(5)
    mask = masked(0.3, 20, 100)[0]
    x, branch, outgoing = (randn(20, 100, dtype=dtype) for _ in range(3))
    tensors = [each.requires_grad_() for each in (x, branch, randn(100, dtype=dtype), randn(100, dtype=dtype))]
    torch.manual_seed(5)
    y = residual_norm(*tensors, epsilon=EPSILON, dropout=0.3, backend="triton")
    found = [y, *torch.autograd.grad(y, tensors, outgoing)]
    exact = [each.detach().double().requires_grad_() for each in tensors]
    y = F.layer_norm(exact[0] + exact[1] * mask / 0.7, (100,), *exact[2:], EPSILON)
    assert_close(found, [y, *torch.autograd.grad(y, exact, outgoing.double())], TOLERANCES[dtype])


def test_a_branch_that_is_dropped_altogether() -> None:
    x, branch, weight, bias = randn(3, 10), randn(3, 10).requires_grad_(), randn(10), randn(10)
    y = residual_norm(x, branch, weight, bias, epsilon=EPSILON, dropout=1.0, backend="triton")
    torch.testing.assert_close(y, F.layer_norm(x, (10,), weight, bias, EPSILON), rtol=1e-5, atol=1e-5)
    assert not torch.autograd.grad(y.sum(), branch)[0].any()


@on_gpu
def test_replays_of_a_recorded_pass_draw_anew() -> None:
    x, branch = torch.zeros(64, 96, device="cuda"), torch.ones(64, 96, device="cuda", requires_grad=True)
    weight, bias = torch.ones(96, device="cuda"), torch.zeros(96, device="cuda")

    def run() -> tuple[Tensor, Tensor]:
        y = residual_norm(x, branch, weight, bias, epsilon=EPSILON, dropout=0.5)
        return y.detach(), torch.autograd.grad(y, branch, torch.ones_like(y).cumsum(-1))[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, gradient = run()
    masks = []
    for _ in range(2):
        graph.replay()
        masks.append(y > 0)
        assert not gradient[y <= 0].any()
    assert not torch.equal(*masks)


# What is served


@pytest.mark.parametrize(
    "plan",
    [plan_forward(8, True, True), plan_backward(8, True, True, True), plan_finish(8)],
    ids=lambda plan: plan.kernel.__name__,
)
def test_constants_stand_last_and_in_order(plan: Plan) -> None:
    """A kernel that was compiled gets them by their places."""
    assert list(plan.constants) == plan.kernel.arg_names[-len(plan.constants) :]


def arguments(dtype: torch.dtype = torch.float32, width: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, branch = randn(2, width, dtype=dtype), randn(2, width, dtype=dtype)
    return x.requires_grad_(), branch.requires_grad_(), randn(width, dtype=dtype), randn(width, dtype=dtype)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The implementations that calls came to, in order."""
    found: list[str] = []
    for name, run in list(IMPLEMENTATIONS.items()):

        def spy(*arguments: Any, name: str = name, run: Callable[..., Tensor] = run) -> Tensor:
            found.append(name)
            return run(*arguments)

        monkeypatch.setitem(IMPLEMENTATIONS, name, spy)
    return found


def test_passes_of_training_only(served: list[str]) -> None:
    x, *others = arguments()
    with use_backend("triton"):
        residual_norm(x, *others, epsilon=EPSILON)
        with torch.no_grad():
            residual_norm(x, *others, epsilon=EPSILON)
        residual_norm(*(each.detach() for each in (x, *others)), epsilon=EPSILON)
    assert served == ["triton", "reference", "reference"]


def test_auto_leaves_the_cpu_to_torch(served: list[str]) -> None:
    x, *others = (each.detach().cpu().requires_grad_() for each in arguments())
    residual_norm(x, *others, epsilon=EPSILON)
    with use_backend("reference"):
        residual_norm(*arguments(), epsilon=EPSILON)
    assert served == ["reference", "reference"]


class Subclass(torch.Tensor):
    pass


@pytest.mark.usefixtures("_unchecked_shapes")
def test_subclasses_and_compilers_meet_torchs_operators(served: list[str]) -> None:
    x, branch, weight, bias = arguments()
    with use_backend("triton"):
        y = residual_norm(x.as_subclass(Subclass), branch, weight, bias, epsilon=EPSILON)
        assert type(y) is Subclass
        assert served == ["reference"]
        compiled = torch.compile(residual_norm, backend="eager", fullgraph=True)
        found = compiled(x, branch, weight, bias, epsilon=EPSILON)
    assert torch.equal(found, residual_norm_reference(x, branch, weight, bias, EPSILON, 0.0))


def test_what_triton_cannot_serve() -> None:
    with pytest.raises(BackendUnavailable, match=r"but got torch.float64; convert the tensors, or take"):
        residual_norm(*arguments(torch.float64), epsilon=EPSILON, backend="triton")
    with pytest.raises(BackendUnavailable, match=r"rows of up to 8192 elements but got 8193; take narrower ones, or"):
        residual_norm(*arguments(width=WIDEST + 1), epsilon=EPSILON, backend="triton")
    with pytest.raises(BackendUnavailable, match='no kernel back end "abacus"'), torch.no_grad():
        residual_norm(*arguments(), epsilon=EPSILON, backend="abacus")


def test_no_gpu_and_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    given = [each.detach().cpu().requires_grad_() for each in arguments()]
    with pytest.raises(BackendUnavailable, match="the tensors lie on the CPU; move them to a GPU"):
        residual_norm(*given, epsilon=EPSILON, backend="triton")


def test_a_branch_of_another_shape() -> None:
    x, branch, weight, bias = arguments()
    with pytest.raises(InputError, match=r"^a branch of shape \(1, 4\) meets states of shape \(2, 4\); give"):
        inspect.unwrap(residual_norm)(x, branch[:1], weight, bias, epsilon=EPSILON)


def test_parameters_of_another_width() -> None:
    x, branch, weight, bias = arguments()
    for given in ((weight[:3], bias), (weight, bias[:3]), (weight[:1], bias[:1])):
        with pytest.raises(InputError, match=r"^weight and bias of a norm have the width of the states, 4; give such"):
            inspect.unwrap(residual_norm)(x, branch, *given, epsilon=EPSILON)


def test_autocast_gives_float32() -> None:
    x, branch, weight, bias = arguments(torch.float16)
    with torch.autocast(DEVICE, torch.float16 if IS_FAST else torch.bfloat16):
        y = residual_norm(x, branch, weight, bias, epsilon=EPSILON, backend="triton")
    assert y.dtype == torch.float32
    assert [each.dtype for each in torch.autograd.grad(y.sum(), (x, branch))] == [torch.float16] * 2


def test_it_is_differentiable_once() -> None:
    x, branch, weight, bias = arguments()
    y = residual_norm(x, branch, weight, bias, epsilon=EPSILON, backend="triton")
    outgoing = torch.randn_like(y).requires_grad_()
    (recorded,) = torch.autograd.grad(y, x, outgoing, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        recorded.sum().backward()


def test_gradients_of_one_sum_do_not_share_their_fate() -> None:
    """Those of x and branch may be one tensor: what is added to one must not appear in the other."""
    x, branch, weight, bias = arguments()
    y = residual_norm(x, branch, weight, bias, epsilon=EPSILON, backend="triton")
    outgoing = torch.randn_like(y)
    ((y * outgoing).sum() + (3 * x).sum() + (5 * branch).sum()).backward()
    assert x.grad is not None
    assert branch.grad is not None
    torch.testing.assert_close(branch.grad - x.grad, torch.full_like(x, 2.0))


def test_gradients_of_parameters_alone() -> None:
    x, branch, weight, bias = (each.detach() for each in arguments())
    y = residual_norm(x, branch, weight.requires_grad_(), bias, epsilon=EPSILON, backend="triton")
    exact = residual_norm(x, branch, weight, bias, epsilon=EPSILON, backend="reference")
    torch.testing.assert_close(*(torch.autograd.grad(each.sum(), weight)[0] for each in (y, exact)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sums_that_nobody_learns_from(dtype: torch.dtype) -> None:
    """One kernel also where there are no gradients, with either back end."""
    x, branch = (torch.randn(5, 24, device=DEVICE).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(24, device=DEVICE).to(dtype) for _ in range(2))
    expected = F.layer_norm((x + branch).double(), (24,), weight.double(), bias.double(), 1e-5)
    with torch.inference_mode():
        for backend in ("triton", "reference"):
            found = normalized_sum(x, branch, weight, bias, epsilon=1e-5, backend=backend)
            assert found.dtype == dtype
            assert (found.double() - expected).norm() <= (1e-6 if dtype == torch.float32 else 2e-3) * expected.norm()
