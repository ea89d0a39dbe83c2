"""Several maps as one product: the numbers and gradients of each by itself."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from depthwise.kernels import use_backend
from depthwise.mixers import CrossAttention, SelfAttention
from depthwise.mixers.attention import Projections
from depthwise.mixers.joint import Joint


def side_by_side(maps: list[nn.Linear]) -> Joint:
    """The maps with their weights moved to a common memory."""
    weight = torch.cat([linear.weight.detach() for linear in maps])
    bias = torch.cat([linear.bias.detach() for linear in maps])
    for linear, own_weight, own_bias in zip(maps, weight.chunk(len(maps)), bias.chunk(len(maps)), strict=True):
        linear.weight, linear.bias = nn.Parameter(own_weight), nn.Parameter(own_bias)
    return Joint(weight, bias, maps)


def some_maps(num: int = 3) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(4, 6).double() for _ in range(num)]


def test_outputs_and_gradients_are_those_of_each_map() -> None:
    maps, x = some_maps(), torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    joint, factors = side_by_side(maps), torch.randn(3, 2, 5, 6, dtype=torch.float64)
    params = [x, *(param for linear in maps for param in linear.parameters())]
    found, expected = joint(x), [linear(x) for linear in maps]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    ours, theirs = (
        torch.autograd.grad(sum((factors[i] * output.tanh()).sum() for i, output in enumerate(outputs)), params)
        for outputs in (found, expected)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_last_maps_alone() -> None:
    maps, x = some_maps(), torch.randn(7, 4, dtype=torch.float64)
    joint = side_by_side(maps)
    found = joint.last(2)(x)
    assert len(found) == 2
    for ours, linear in zip(found, maps[1:], strict=True):
        torch.testing.assert_close(ours, linear(x), rtol=1e-12, atol=1e-12)
    (found[0].sum() + found[1].sum()).backward()
    assert maps[0].weight.grad is None
    assert maps[1].weight.grad is not None


def test_what_needs_no_gradient_gets_none() -> None:
    maps = some_maps()
    joint = side_by_side(maps)
    for linear in maps:
        linear.requires_grad_(False)
    x = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    sum(output.sum() for output in joint(x)).backward()  # type: ignore[union-attr]
    torch.testing.assert_close(x.grad, sum(linear.weight.sum(0) for linear in maps).expand(7, -1))  # type: ignore[union-attr]
    assert all(linear.weight.grad is None for linear in maps)
    maps[2].bias.requires_grad_(True)
    sum(output.sum() for output in joint(x.detach())).backward()  # type: ignore[union-attr]
    assert torch.equal(maps[2].bias.grad, torch.full((6,), 7.0, dtype=torch.float64))  # type: ignore[arg-type]
    assert maps[2].weight.grad is None


def joined(projections: Projections) -> None:
    projections.joint = side_by_side([projections.query, projections.key, projections.value])


def gradients(module: nn.Module, output: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(output.square().sum(), list(module.parameters())))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("has_past", [True, False])
def test_self_attention_gives_the_same(causal: bool, has_past: bool) -> None:
    torch.manual_seed(0)
    mixer = SelfAttention(8, 2, causal=causal).double()
    x, valid = torch.randn(2, 5, 8, dtype=torch.float64), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    past = None
    if has_past:
        with torch.no_grad():
            past = mixer.write(torch.randn_like(x), valid)
    joined(mixer.projections)
    mixed, memory = mixer.write_and_read(x, valid, past)
    ours = gradients(mixer, mixed)
    mixer.projections.joint = None
    expected, other_memory = mixer.write_and_read(x, valid, past)
    torch.testing.assert_close(mixed, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(memory.keys, other_memory.keys, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(memory.values, other_memory.values, rtol=1e-12, atol=1e-12)
    for one, other in zip(ours, gradients(mixer, expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_cross_attention_gives_the_same() -> None:
    torch.manual_seed(0)
    mixer = CrossAttention(8, 2).double()
    x, source = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    joined(mixer.projections)
    found = mixer.read(x, mixer.write(source))
    ours = gradients(mixer, found)
    mixer.projections.joint = None
    expected = mixer.read(x, mixer.write(source))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for one, other in zip(ours, gradients(mixer, expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize("kind", ["self", "cross"])
def test_gradients_of_short_attention_are_not_copied(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels write them side by side already, and they are those of torch's attention."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    mixer = (SelfAttention(32, 2, causal=True) if kind == "self" else CrossAttention(32, 2)).to(device, torch.float16)
    x = torch.randn(2, 5, 32, device=device).half()
    joined(mixer.projections)

    def run() -> list[torch.Tensor]:
        mixed = mixer(x) if isinstance(mixer, SelfAttention) else mixer.read(x, mixer.write(x))
        return [mixed, *gradients(mixer, mixed)]

    with use_backend("reference"):
        expected = run()
    with use_backend("triton"):
        monkeypatch.delattr(torch, "cat")
        found = run()
        monkeypatch.undo()
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).norm() <= 5e-3 * theirs.norm() + 1e-3
