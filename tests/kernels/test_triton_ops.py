"""The kernels as an operator of torch: what compilers and exporters see."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthwise.errors import InputError
from depthwise.kernels import dynamic_conv, light_conv

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(fixed: bool) -> tuple[Tensor, Tensor]:
    x = torch.randn(2, 20, 32, device=DEVICE)
    kernel = torch.randn(*(() if fixed else (2, 20)), 2, 5, device=DEVICE)
    return x.requires_grad_(), kernel.requires_grad_()


@pytest.mark.parametrize("fixed", [False, True])
def test_the_operator_is_registered_as_torch_wants_it(fixed: bool) -> None:
    valid = torch.rand(2, 20, device=DEVICE) < 0.7
    options: tuple[Any, ...] = (4, 20, valid, None, None, None, True, False, 0.0, False, True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.depthwise.convolve.default, (*inputs(fixed), *options), test_utils=checks)


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("fixed", [False, True])
def test_its_gradients_have_the_shapes_that_compilers_are_told(fixed: bool, wanted: tuple[bool, bool]) -> None:
    """Of views too, whose strides the gradients do not have, and in the precision of each."""
    x, kernel = (each.detach().transpose(-1, -2).contiguous().transpose(-1, -2) for each in inputs(fixed))
    x = x.half()
    options: tuple[Any, ...] = (4, 20, None, None, None, None, True, False, 0.0, False)
    out, lse = torch.ops.depthwise.convolve(x, kernel, *options, True)
    checks = ("test_schema", "test_faketensor")
    arguments = (torch.randn_like(out), x, kernel, lse, *options, *wanted)
    torch.library.opcheck(torch.ops.depthwise.convolve_backward.default, arguments, test_utils=checks)


@pytest.mark.parametrize("fixed", [False, True])
def test_the_operator_gives_what_plain_calls_give(fixed: bool) -> None:
    x, kernel = inputs(fixed)
    plain = (
        light_conv(x, kernel, left=4, backend="triton") if fixed else dynamic_conv(x, kernel, left=4, backend="triton")
    )
    options: tuple[Any, ...] = (4, 20, None, None, None, None, True, False, 0.0, False, True)
    operator = torch.ops.depthwise.convolve(x, kernel, *options)[0]
    assert torch.equal(operator, plain)
    outgoing = torch.randn_like(plain)
    for found, expected in zip(
        torch.autograd.grad(operator, (x, kernel), outgoing),
        torch.autograd.grad(plain, (x, kernel), outgoing),
        strict=True,
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("fixed", [False, True])
def test_it_is_differentiable_once(fixed: bool) -> None:
    """Also where the backward pass is recorded: then its gradients are the same, and a second one is an error."""
    x, kernel = inputs(fixed)
    y = (light_conv if fixed else dynamic_conv)(x, kernel, left=4, backend="triton")
    outgoing = torch.randn_like(y).requires_grad_()
    plain = torch.autograd.grad(y, (x, kernel), outgoing, retain_graph=True)
    recorded = torch.autograd.grad(y, (x, kernel), outgoing, create_graph=True)
    for ours, theirs in zip(recorded, plain, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.requires_grad
        assert not theirs.requires_grad
    with pytest.raises(RuntimeError, match="differentiate twice"):
        (recorded[0].sum() + recorded[1].sum()).backward()


@pytest.mark.parametrize("fixed", [False, True])
def test_gradients_that_lie_in_a_larger_tensor(fixed: bool) -> None:
    x, kernel = inputs(fixed)
    y = (light_conv if fixed else dynamic_conv)(x, kernel, left=4, backend="triton")
    wide = torch.randn(2, 40, 48, device=DEVICE)
    parts = (wide[:, :20, :32], wide[:, ::2, 16:], wide.transpose(1, 2)[:, 3:23, :32])
    for outgoing in parts:
        for found, expected in zip(
            torch.autograd.grad(y, (x, kernel), outgoing, retain_graph=True),
            torch.autograd.grad(y, (x, kernel), outgoing.contiguous(), retain_graph=True),
            strict=True,
        ):
            assert torch.equal(found, expected)


def test_a_mask_that_changes_before_the_backward_pass_is_an_error() -> None:
    x, kernel = inputs(False)
    valid = torch.ones(2, 20, dtype=torch.bool, device=DEVICE)
    y = dynamic_conv(x, kernel, left=4, valid=valid, backend="triton")
    valid[0, 3] = False
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_the_operator_checks_shapes_too() -> None:
    """A program that was exported may be given others."""
    valid = torch.ones(2, 19, dtype=torch.bool, device=DEVICE)
    options: tuple[Any, ...] = (4, 20, valid, None, None, None, True, False, 0.0, False, True)
    with pytest.raises(InputError, match=r"do not belong together: x \(2, 20, 32\), kernels .*, valid \(2, 19\); give"):
        torch.ops.depthwise.convolve(*inputs(False), *options)


class Layer(nn.Module):
    def forward(self, x: Tensor, logits: Tensor, weight: Tensor) -> Tensor:
        mixed = dynamic_conv(x, logits, left=4, backend="triton")
        return light_conv(mixed, weight, left=4, backend="triton").relu()


@pytest.mark.usefixtures("_unchecked_shapes")
def test_compiled_without_a_break() -> None:
    x, logits = inputs(False)
    weight = torch.randn(2, 5, device=DEVICE, requires_grad=True)
    layer = Layer()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    found, expected = compiled(x, logits, weight), layer(x, logits, weight)
    assert torch.equal(found, expected)
    for ours, theirs in zip(
        torch.autograd.grad(found.sum(), (x, logits, weight)),
        torch.autograd.grad(expected.sum(), (x, logits, weight)),
        strict=True,
    ):
        assert torch.equal(ours, theirs)


def test_exported() -> None:
    x, logits = (each.detach() for each in inputs(False))
    weight = torch.randn(2, 5, device=DEVICE)
    program = torch.export.export(Layer(), (x, logits, weight))
    assert torch.equal(program.module()(x, logits, weight), Layer()(x, logits, weight))
    assert sum(node.target is torch.ops.depthwise.convolve.default for node in program.graph.nodes) == 2


def test_exported_for_inference() -> None:
    """What gradients need was not kept: asking for them is an error, not a wrong answer."""
    x, logits = (each.detach() for each in inputs(False))
    weight = torch.randn(2, 5, device=DEVICE)
    y = torch.export.export(Layer(), (x, logits, weight)).module()(x.requires_grad_(), logits, weight)
    with pytest.raises(InputError, match=r"^this program was made for inference and has no gradients; make it from"):
        y.sum().backward()
