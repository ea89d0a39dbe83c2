"""The Triton kernels on a GPU: the whole grid of awkward shapes, in every precision, and the models that use them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.config import ModelConfig, StackConfig
from depthwise.kernels import dynamic_conv, light_conv, use_backend
from depthwise.mixers import build_mixer
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.configuration import DepthwiseConfig

pytestmark = pytest.mark.gpu
TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}


def outcome(
    convolve: Callable[..., Tensor], x: Tensor, kernel: Tensor, outgoing: Tensor, **options: Any
) -> list[Tensor]:
    """Output and gradients. Whatever Triton does not write is not a number."""
    x, kernel = x.detach().requires_grad_(), kernel.detach().requires_grad_()
    torch.use_deterministic_algorithms(options["backend"] == "triton")  # fills new memory with NaN
    try:
        y = convolve(x, kernel, **options)
        return [y.detach(), *torch.autograd.grad(y, (x, kernel), outgoing)]
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("taps", [1, 2, 3, 7, 31, 63, 255])
@pytest.mark.parametrize("heads", [1, 48])
def test_awkward_shapes(taps: int, heads: int, dtype: torch.dtype) -> None:
    """Forward and every gradient, with memory that is not written left as NaN; the third row is all padding."""
    for length in (1, 2, 63, 64, 65, 500):
        x = torch.randn(3, 48, length, device="cuda").to(dtype).transpose(1, 2)
        valid = torch.rand(3, length, device="cuda") < 0.9
        valid[2] = False
        outgoing = torch.randn(3, length, 48, device="cuda").to(dtype)
        per_position = torch.randn(3, length, heads, taps, device="cuda").to(dtype)
        for convolve, kernel in ((dynamic_conv, per_position), (light_conv, per_position[0, 0].clone())):
            options: dict[str, Any] = {"left": taps - 1 if taps % 2 == 0 else taps // 2, "valid": valid}
            found = outcome(convolve, x, kernel, outgoing, backend="triton", **options)
            inputs = (each.double() for each in (x, kernel, outgoing))
            exact = outcome(convolve, *inputs, backend="reference", **options)
            few = convolve is light_conv or length < 3  # the error of a few numbers does not average out
            for ours, theirs in zip(found, exact, strict=True):
                error, norm = (ours.double() - theirs).norm().item(), theirs.norm().item()
                scale = norm if norm > 1e-9 else 10 * ours.numel() ** 0.5
                assert error <= TOLERANCES[dtype] * (3 if few else 1) * scale, (convolve, length, error, norm)


def test_long_rows_and_many_of_them() -> None:
    """More programs than fit one axis of a grid."""
    x, logits = torch.randn(70_000, 1, 16, device="cuda"), torch.randn(70_000, 1, 1, 7, device="cuda")
    torch.testing.assert_close(dynamic_conv(x, logits, left=3), x * logits.softmax(-1)[..., 3])
    x, logits = x.view(1, 70_000, 16), logits.view(1, 70_000, 1, 7)
    exact = dynamic_conv(x, logits, left=6, backend="reference")
    torch.testing.assert_close(dynamic_conv(x, logits, left=6), exact, rtol=1e-5, atol=1e-6)


def test_auto_takes_triton() -> None:
    x, weight = torch.randn(2, 40, 32, device="cuda"), torch.randn(2, 7, device="cuda")
    assert torch.equal(light_conv(x, weight, left=6), light_conv(x, weight, left=6, backend="triton"))


@pytest.mark.parametrize("mixer", ["lightconv", "dynamicconv"])
def test_both_back_ends_train_alike(mixer: str) -> None:
    """The same parameters give the same gradients."""
    stack = StackConfig(mixer=mixer, num_layers=1, num_heads=4, ffn_width=64, kernel_sizes=(31,), glu=True)
    module = build_mixer(stack, 0, width=64, causal=True).cuda()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x = torch.randn(2, 50, 64, device="cuda")
    results = []
    for backend in ("reference", "triton"):
        module.zero_grad()
        with use_backend(backend):
            y = module(x)
            y.square().sum().backward()
        results.append([y, *(parameter.grad.clone() for parameter in module.parameters())])
    for reference, triton in zip(*results, strict=True):
        torch.testing.assert_close(triton, reference, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mixer", ["lightconv", "dynamicconv"])
def test_both_back_ends_decode_the_same_tokens(mixer: str) -> None:
    stack = StackConfig(mixer=mixer, num_layers=2, num_heads=4, ffn_width=64, kernel_sizes=(3, 31))
    options = ModelConfig(vocab_size=97, width=64, decoder=stack)
    model = DepthwiseForCausalLM(DepthwiseConfig.from_options(options)).cuda().eval()
    prompt = torch.randint(4, 97, (3, 9), device="cuda")
    tokens = []
    for backend in ("reference", "triton"):
        with use_backend(backend):
            tokens.append(model.generate(prompt, max_new_tokens=40, do_sample=False))
    assert torch.equal(tokens[0], tokens[1])
