"""The kernels as an operator of torch: what compilers and exporters see."""

from collections.abc import Iterator
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

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


class Layer(nn.Module):
    def forward(self, x: Tensor, logits: Tensor, weight: Tensor) -> Tensor:
        mixed = dynamic_conv(x, logits, left=4, backend="triton")
        return light_conv(mixed, weight, left=4, backend="triton").relu()


@pytest.fixture
def _unchecked_shapes() -> Iterator[None]:
    """A compiler cannot look through the checks of shapes that the tests put around every function."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


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
