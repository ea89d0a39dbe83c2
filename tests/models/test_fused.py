"""Models whose norms and losses are fused learn what they learn without: on a GPU, or by Triton's interpreter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthwise.depth import Gate
from depthwise.errors import BackendUnavailable
from depthwise.kernels import use_backend
from depthwise.kernels.residual_norm import IMPLEMENTATIONS, WIDEST
from depthwise.losses import label_smoothed_cross_entropy, token_cross_entropy
from depthwise.models.block import Residual

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Model = Callable[..., Any]


@pytest.fixture
def num_fused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many norms were fused, as the one element of a list."""
    count = [0]
    run = IMPLEMENTATIONS["triton"]

    def spy(*arguments: Any) -> Tensor:
        count[0] += 1
        return run(*arguments)

    monkeypatch.setitem(IMPLEMENTATIONS, "triton", spy)
    return count


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("smoothing", [None, 0.1])
def test_loss_and_gradients(
    build: Model,
    draw_batch: Callable[..., dict[str, Tensor]],
    num_fused: list[int],
    norm: str,
    smoothing: float | None,
) -> None:
    model = build("seq2seq", "attention", norm).float().train().to(DEVICE)
    batch = {name: value.to(DEVICE) for name, value in draw_batch("seq2seq").items()}
    found = {}
    for backend in ("reference", "triton"):
        model.zero_grad()
        with use_backend(backend):
            output = model(**batch)
            loss = output.loss
            if smoothing is not None:
                loss = label_smoothed_cross_entropy(output.logits, batch["labels"], smoothing, 5).loss
            loss.backward()
        found[backend] = [loss.detach(), *(weight.grad.clone() for weight in model.parameters())]
    for ours, theirs in zip(found["triton"], found["reference"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=1e-5)
    assert num_fused == [2 * 2 + 2 * 3]


def test_evaluation_is_not_fused(
    build: Model, draw_batch: Callable[..., dict[str, Tensor]], num_fused: list[int]
) -> None:
    """Not in a model that evaluates, nor where nobody will ask for gradients."""
    model = build("seq2seq", "attention", "post").float().to(DEVICE)
    batch = {name: value.to(DEVICE) for name, value in draw_batch("seq2seq").items()}
    for is_training in (False, True):
        model.train(is_training)
        with torch.set_grad_enabled(not is_training):
            with use_backend("reference"):
                expected = model(**batch)
            with use_backend("triton"):
                found = model(**batch)
        assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.loss, expected.loss)
    assert num_fused == [0]


@pytest.fixture
def residual(build: Model) -> Residual:
    found = next(module for module in build("seq2seq", "attention", "post").modules() if isinstance(module, Residual))
    return found.float().train().to(DEVICE)


def test_a_hard_gate_selects_behind_the_fused_norm(residual: Residual, num_fused: list[int]) -> None:
    x, branch = torch.randn(2, 2, 3, 8, device=DEVICE, requires_grad=True)
    gate = Gate(run=torch.tensor([[True, False, True], [False, False, True]], device=DEVICE))
    results = []
    for backend in ("reference", "triton"):
        with use_backend(backend):
            y = residual.leave(x, branch, gate)
        results.append([y, *torch.autograd.grad(y.square().sum(), (x, branch))])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert torch.equal(results[1][0][~gate.run], x[~gate.run])
    assert num_fused == [1]


def test_dropout_is_fused_in_training_only(residual: Residual, num_fused: list[int]) -> None:
    residual.dropout = 0.5
    x, branch = torch.randn(2, 2, 3, 8, device=DEVICE, requires_grad=True)
    with use_backend("triton"):
        assert not torch.equal(residual.leave(x, branch, None), residual.leave(x, branch, None))
        residual.eval()
        assert torch.equal(residual.leave(x, branch, None), residual.leave(x, branch, None))
    assert num_fused == [2]


def test_a_norm_that_others_changed_is_called(residual: Residual, num_fused: list[int]) -> None:
    """Hooks on it hear of it, and what took its place runs."""
    x, branch = torch.randn(2, 2, 3, 8, device=DEVICE, requires_grad=True)
    heard = []
    handle = residual.norm.register_forward_hook(lambda *_: heard.append(True))
    with use_backend("triton"):
        residual.leave(x, branch, None)
        handle.remove()
        residual.leave(x, branch, None)
        assert heard == [True]
        residual.norm = nn.LayerNorm(8, bias=False, device=DEVICE)
        torch.testing.assert_close(residual.leave(x, branch, None), residual.norm(x + branch))
        residual.norm = nn.Identity()
        assert torch.equal(residual.leave(x, branch, None), x + branch)
    assert num_fused == [1]


def test_too_wide_a_norm_is_an_error_only_where_triton_was_asked_for(residual: Residual) -> None:
    residual.norm = nn.LayerNorm(WIDEST + 1).to(DEVICE)
    x = torch.randn(1, 1, WIDEST + 1, device=DEVICE, requires_grad=True)
    assert residual.leave(x, x, None).shape == x.shape
    with use_backend("triton"), pytest.raises(BackendUnavailable, match="rows of up to 8192 elements but got 8193"):
        residual.leave(x, x, None)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses(smoothing: float) -> None:
    """Every part of what is returned, divided as before; without smoothing it is the plain loss."""
    logits = torch.randn(2, 3, 5, device=DEVICE, requires_grad=True)
    labels = torch.tensor([[1, -100, 0], [2, 4, -100]], device=DEVICE)
    results = []
    for backend in ("reference", "triton"):
        with use_backend(backend):
            found = label_smoothed_cross_entropy(logits, labels, smoothing, 7, over_others=True)
            plain = token_cross_entropy(logits, labels)
        gradients = [torch.autograd.grad(loss, logits)[0] for loss in (found.loss, plain)]
        results.append([*found, plain, *gradients])
        torch.testing.assert_close(plain, found.nll_sum / 4)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
