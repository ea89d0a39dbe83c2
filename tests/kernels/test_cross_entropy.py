"""The fused cross-entropy against torch's operators in float64: on a GPU, or by Triton's interpreter."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.errors import BackendUnavailable, InputError
from depthwise.kernels import smoothed_cross_entropy, use_backend
from depthwise.kernels.cross_entropy import IMPLEMENTATIONS, SmoothedTarget, plan_backward, plan_forward
from depthwise.kernels.plan import Plan

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}
IGNORED = -100
SCALE = 256.0
"""What the gradient of the loss comes in as: in float16, training scales losses up."""


def drawn(num_rows: int, num_types: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Scores and labels, every third of them ignored, the last and the first type among the others."""
    labels = torch.randint(num_types, (num_rows,), device=DEVICE)
    labels[:1], labels[1:2] = num_types - 1, 0
    labels[2::3] = IGNORED
    return 3 * torch.randn(num_rows, num_types, device=DEVICE).to(dtype), labels


def outcome(logits: Tensor, labels: Tensor, *options: Any, by: str, **more: Any) -> list[Tensor]:
    """Loss, likelihood and gradient. Whatever Triton does not write is not a number."""
    logits = logits.detach().requires_grad_()
    torch.use_deterministic_algorithms(by == "triton")  # fills new memory with NaN
    try:
        total, nll = smoothed_cross_entropy(logits, labels, *options, backend=by, **more)
        assert not nll.requires_grad
        return [total.detach(), nll, *torch.autograd.grad(total, logits, torch.full_like(total, SCALE))]
    finally:
        torch.use_deterministic_algorithms(False)


def check(logits: Tensor, labels: Tensor, smoothing: float, **options: Any) -> None:
    found = outcome(logits, labels, smoothing, by="triton", **options)
    exact = outcome(logits.double(), labels, smoothing, by="reference", **options)
    assert [each.dtype for each in found] == [torch.float32, torch.float32, logits.dtype]
    assert found[2].shape == logits.shape
    assert not found[2][labels == IGNORED].any()
    # Exponentials and logarithms of a GPU are good to 22 bits.
    sums = 4e-6 if logits.is_cuda else 1e-6
    for ours, theirs, tolerance in zip(found, exact, (sums, sums, max(sums, TOLERANCES[logits.dtype])), strict=True):
        error, norm = (ours.double() - theirs).norm().item(), theirs.norm().item()
        assert error <= tolerance * (norm if norm > 1e-9 else SCALE), (error, norm)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("num_types", [2, 3, 100, 128, 500, 512, 1025, 2048, 2049, 6489])
def test_awkward_vocabularies(num_types: int, smoothing: float) -> None:
    check(*drawn(7, num_types), smoothing)


def test_one_type() -> None:
    check(*drawn(3, 1), 0.1)


@pytest.mark.parametrize("num_rows", [0, 1, 7, 130])
@pytest.mark.parametrize("over_others", [False, True])
def test_any_number_of_rows(num_rows: int, over_others: bool) -> None:
    check(*drawn(num_rows, 37), 0.1, over_others=over_others)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)], ids=str)
def test_half_precision(dtype: torch.dtype, smoothing: float) -> None:
    check(*drawn(7, 3000, dtype), smoothing)
    check(*drawn(7, 3000, dtype), smoothing, over_others=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("num_types", [1, 2, 3, 100, 1025, 6489, 8424, 10_000, 50_257])
def test_everything_on_a_gpu(num_types: int, dtype: torch.dtype) -> None:
    for num_rows in (1, 7, 130, 1025):
        for smoothing in (0.0, 0.1):
            check(*drawn(num_rows, num_types, dtype), smoothing)
        if num_types > 1:
            check(*drawn(num_rows, num_types, dtype), 0.3, over_others=True)


def test_all_rows_ignored() -> None:
    logits, labels = drawn(5, 40)
    total, nll, gradient = outcome(logits, labels.fill_(IGNORED), 0.1, by="triton")
    assert total == nll == 0
    assert not gradient.any()


def test_scores_of_ignored_rows_do_not_matter() -> None:
    logits, labels = drawn(6, 40)
    logits[labels == IGNORED] = torch.nan
    total, nll, gradient = outcome(logits, labels, 0.1, by="triton")
    assert total.isfinite()
    assert nll.isfinite()
    assert gradient.isfinite().all()


def test_scores_that_lie_in_a_larger_tensor() -> None:
    wide, labels = drawn(9, 100)
    check(wide[:, 10:70], labels.where(labels < 60, IGNORED), 0.1)
    check(wide.T[:60], torch.arange(60, device=DEVICE) % 9, 0.1)
    check(wide, torch.stack([labels, labels], 1)[:, 0], 0.1)


def test_impossible_types() -> None:
    """Scores of minus infinity: a whole block of them, and all but the label, weigh nothing."""
    logits, labels = drawn(4, 5000)
    labels[:] = torch.tensor([4999, 3, 2500, IGNORED], device=DEVICE)
    logits[:, :2100] = -torch.inf
    logits[1, 3] = 1.0
    logits[0, :4999] = -torch.inf
    check(logits, labels, 0.0)


def test_large_scores() -> None:
    """Whose exponentials no float32 holds, rising and falling along a row."""
    logits, labels = drawn(6, 5000)
    logits += torch.linspace(-300, 300, 5000, device=DEVICE)
    check(logits, labels, 0.1)
    check(logits.flip(1), labels, 0.1)


@pytest.mark.parametrize("label", [40, 41, -1, -99, 2**40])
def test_a_label_that_no_type_has_is_seen(label: int) -> None:
    logits, labels = drawn(3, 40)
    labels[1] = label
    total, nll, gradient = outcome(logits, labels, 0.1, by="triton")
    assert total.isnan()
    assert nll.isnan()
    assert gradient[1].isnan().all()
    assert gradient[0].isfinite().all()


def test_another_label_to_ignore() -> None:
    logits, labels = drawn(6, 40)
    expected = outcome(logits, labels, 0.1, by="triton")
    found = outcome(logits, labels.masked_fill(labels == IGNORED, 40), 0.1, by="triton", ignored=40)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_labels_of_32_bits() -> None:
    logits, labels = drawn(6, 40)
    for ours, theirs in zip(
        outcome(logits, labels.int(), 0.1, by="triton"), outcome(logits, labels, 0.1, by="triton"), strict=True
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("over_others", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_a_target_sums_to_one(smoothing: float, over_others: bool) -> None:
    target = SmoothedTarget(smoothing, 50, over_others, IGNORED)
    assert target.of_label + 50 * target.of_every == pytest.approx(1, abs=1e-12)
    share = smoothing / 49 if over_others else smoothing / 50
    assert target.of_every == pytest.approx(share)


# What is served


@pytest.mark.parametrize(
    "plan", [plan_forward(8, True, IGNORED), plan_backward(8, IGNORED)], ids=["forward", "backward"]
)
def test_constants_stand_last_and_in_order(plan: Plan) -> None:
    """A kernel that was compiled gets them by their places."""
    assert list(plan.constants) == plan.kernel.arg_names[-len(plan.constants) :]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The implementations that calls came to, in order."""
    found: list[str] = []
    for name, run in list(IMPLEMENTATIONS.items()):

        def spy(*arguments: Any, name: str = name, run: Callable[..., Any] = run) -> Any:
            found.append(name)
            return run(*arguments)

        monkeypatch.setitem(IMPLEMENTATIONS, name, spy)
    return found


def test_passes_of_training_only(served: list[str]) -> None:
    logits, labels = drawn(2, 5)
    with use_backend("triton"):
        smoothed_cross_entropy(logits, labels, 0.1)
        smoothed_cross_entropy(logits.requires_grad_(), labels, 0.1)
        with torch.no_grad():
            smoothed_cross_entropy(logits, labels, 0.1)
    with use_backend("reference"):
        smoothed_cross_entropy(logits, labels, 0.1)
    assert served == ["reference", "triton", "reference", "reference"]


def test_auto_leaves_the_cpu_to_torch(served: list[str]) -> None:
    logits, labels = (each.cpu() for each in drawn(2, 5))
    smoothed_cross_entropy(logits.requires_grad_(), labels, 0.1)
    assert served == ["reference"]


def test_what_triton_cannot_serve() -> None:
    logits, labels = drawn(2, 5)
    with pytest.raises(BackendUnavailable, match=r"but got torch.float64; convert the tensors, or take"):
        smoothed_cross_entropy(logits.double().requires_grad_(), labels, 0.1, backend="triton")


def test_labels_that_do_not_fit() -> None:
    logits, labels = drawn(2, 5)
    with pytest.raises(InputError, match=r"^1 labels do not fit scores of shape \(2, 5\); give one per row$"):
        inspect.unwrap(smoothed_cross_entropy)(logits, labels[:1], 0.1)


def test_it_is_differentiable_once() -> None:
    logits, labels = drawn(2, 5)
    total, _ = smoothed_cross_entropy(logits.requires_grad_(), labels, 0.1, backend="triton")
    (recorded,) = torch.autograd.grad(total, logits, total.detach().requires_grad_(), create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        recorded.sum().backward()


@pytest.mark.gpu
def test_recorded() -> None:
    logits, labels = drawn(64, 1000)
    logits.requires_grad_()

    def run() -> Tensor:
        return torch.autograd.grad(smoothed_cross_entropy(logits, labels, 0.1)[0], logits)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected = run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    graph.replay()
    assert torch.equal(found, expected)
