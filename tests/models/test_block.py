"""Blocks: gates on every sub-block, and reading for a subset of positions."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthwise.config import StackConfig
from depthwise.depth import Gate
from depthwise.errors import ConfigError
from depthwise.models.block import Block

WIDTH, ROWS, STEPS = 8, 3, 5
Options = Callable[..., dict[str, Any]]
Randomize = Callable[[nn.Module], nn.Module]
Make = Callable[..., Block]


@pytest.fixture
def make(stack_for: Options, randomize: Randomize) -> Make:
    def make_block(mixer: str = "attention", norm: str = "pre", causal: bool = True, **changes: Any) -> Block:
        options = StackConfig(**stack_for(mixer, norm, num_layers=2, **changes))
        block = Block(options, 1, width=WIDTH, causal=causal, has_source=causal)
        return randomize(block).double().eval()

    return make_block


def states(steps: int = STEPS) -> Tensor:
    return torch.randn(ROWS, steps, WIDTH, dtype=torch.float64)


def source_of(block: Block) -> Any:
    return None if block.cross is None else block.cross.write(torch.randn(ROWS, 4, WIDTH, dtype=torch.float64))


def masks() -> dict[str, Tensor]:
    return {
        "scalar": torch.tensor(True),
        "per row": torch.tensor([True, False, True]),
        "per token": torch.rand(ROWS, STEPS) < 0.5,
    }


def per_token(gate: Tensor) -> Tensor:
    return gate.view(*gate.shape, *(1,) * (2 - gate.dim())).expand(ROWS, STEPS) if gate.dim() else gate.expand(ROWS, 5)


# Hard gates


@pytest.mark.parametrize("kind", ["scalar", "per row", "per token"])
@pytest.mark.parametrize("poison", [None, float("inf"), float("nan")])
def test_a_closed_gate_is_a_copy(make: Make, norm: str, kind: str, poison: float | None) -> None:
    """Bit for bit, even where the branches give what is not finite."""
    block, x = make("lightconv", norm), states()
    if poison is not None:
        with torch.no_grad():
            block.mixer.out_projection.bias.fill_(poison)
            block.feed_forward.out.bias.fill_(poison)
    run = torch.zeros_like(masks()[kind])
    after, _ = block(x, source=source_of(block), gate=Gate(run))
    assert torch.equal(after, x)


def test_a_closed_gate_copies_what_is_not_finite(make: Make, norm: str) -> None:
    block, x = make("attention", norm), states()
    x[0, 1, 2], x[1, 0, 0] = float("inf"), float("nan")
    after, _ = block(x, source=source_of(block), gate=Gate(torch.tensor(False)))
    assert torch.equal(after.isnan(), x.isnan())
    assert torch.equal(after.nan_to_num(7.0), x.nan_to_num(7.0))


@pytest.mark.parametrize("kind", ["scalar", "per row", "per token"])
def test_those_who_run_are_as_without_a_gate(make: Make, mixer: str, norm: str, kind: str) -> None:
    """All have written, so what runs does not depend on who else runs; who does not run is a copy."""
    block, x, run = make(mixer, norm), states(), masks()[kind]
    source = source_of(block)
    plain, _ = block(x, source=source)
    gated, _ = block(x, source=source, gate=Gate(run))
    expected = torch.where(per_token(run).unsqueeze(-1), plain, x)
    assert torch.equal(gated, expected)


def test_an_open_gate_is_no_gate(make: Make, mixer: str, norm: str) -> None:
    block, x = make(mixer, norm), states()
    source = source_of(block)
    plain, _ = block(x, source=source)
    for gate in (Gate(), *(Gate(torch.ones_like(run)) for run in masks().values())):
        assert torch.equal(block(x, source=source, gate=gate)[0], plain)


def test_a_soft_gate_of_one_is_no_gate(make: Make, mixer: str) -> None:
    for norm in ("pre", "none"):
        block, x = make(mixer, norm), states()
        source = source_of(block)
        plain, _ = block(x, source=source)
        for weight in (torch.tensor(1.0), torch.ones(ROWS), torch.ones(ROWS, STEPS)):
            assert torch.equal(block(x, source=source, gate=Gate(weight=weight))[0], plain)


# Soft gates


def by_hand(block: Block, x: Tensor, source: Any, weight: Tensor) -> Tensor:
    """x + g·branch(norm(x)) for mixer, cross-attention and feed-forward in turn."""
    weight = weight.to(x.dtype).unsqueeze(-1)

    def entered(x: Tensor, residual: Any) -> Tensor:
        return x if residual.norm is None else F.layer_norm(x, (WIDTH,), residual.norm.weight, residual.norm.bias)

    x = x + weight * block.mixer(entered(x, block.mixer_residual))
    x = x + weight * block.cross.read(entered(x, block.cross_residual), source)
    return x + weight * block.feed_forward(entered(x, block.feed_forward_residual))


@pytest.mark.parametrize("norm", ["pre", "none"])
@pytest.mark.parametrize("kind", ["scalar", "per row", "per token"])
def test_a_soft_gate_weighs_every_branch(make: Make, mixer: str, norm: str, kind: str) -> None:
    block, x = make(mixer, norm), states()
    source, weight = source_of(block), torch.rand(masks()[kind].shape)
    after, _ = block(x, source=source, gate=Gate(weight=weight))
    torch.testing.assert_close(after, by_hand(block, x, source, per_token(weight)), rtol=1e-10, atol=1e-12)


def test_both_gates_weigh_the_branch_of_those_who_run(make: Make, mixer: str) -> None:
    block, x, run = make(mixer), states(), masks()["per token"]
    source, weight = source_of(block), torch.rand(ROWS)
    after, _ = block(x, source=source, gate=Gate(run, weight))
    weighed, _ = block(x, source=source, gate=Gate(weight=weight))
    assert torch.equal(after, torch.where(run.unsqueeze(-1), weighed, x))


def test_soft_gates_receive_gradients(make: Make) -> None:
    """Each row's weight gets the gradient of its own row, and a closed gate cuts it off."""
    block, x = make("dynamicconv"), states()
    source, weight = source_of(block), torch.rand(ROWS, dtype=torch.float64, requires_grad=True)

    def output(weight: Tensor, run: Tensor | None = None) -> Tensor:
        return block(x, source=source, gate=Gate(run, weight))[0].sum((1, 2))

    assert torch.autograd.gradcheck(output, (weight,))
    (jacobian,) = torch.autograd.functional.jacobian(output, (weight,))
    assert (jacobian.diagonal().abs() > 1e-6).all()
    assert torch.equal(jacobian, jacobian.diagonal().diag())
    output(weight, torch.tensor([True, False, True])).sum().backward()
    assert weight.grad[1] == 0
    assert (weight.grad[[0, 2]] != 0).all()


def test_a_closed_gate_passes_gradients_through(make: Make, norm: str) -> None:
    block, x = make("lightconv", norm), states().requires_grad_()
    block(x, source=source_of(block), gate=Gate(torch.tensor(False)))[0].sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    assert all(weight.grad is None or not weight.grad.any() for weight in block.parameters())


def test_a_soft_gate_on_post_norm_is_refused(make: Make) -> None:
    block, x = make("attention", "post"), states()
    with pytest.raises(ConfigError) as raised:
        block(x, source=source_of(block), gate=Gate(weight=torch.ones(ROWS)))
    (problem,) = raised.value.problems
    assert problem.option == "norm"
    assert problem.message == 'a soft gate needs norm "pre" or "none"; with "post" use a hard gate'


def test_post_norm_normalises_after_the_sum(make: Make) -> None:
    """The formula of the other placement: norm(x + branch(x)) for each sub-block."""
    block, x = make("depthwise", "post"), states()
    source = source_of(block)

    def left(x: Tensor, residual: Any) -> Tensor:
        return F.layer_norm(x, (WIDTH,), residual.norm.weight, residual.norm.bias)

    expected = left(x + block.mixer(x), block.mixer_residual)
    expected = left(expected + block.cross.read(expected, source), block.cross_residual)
    expected = left(expected + block.feed_forward(expected), block.feed_forward_residual)
    torch.testing.assert_close(block(x, source=source)[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        *[("relu", F.relu), ("gelu", F.gelu), ("silu", F.silu), ("tanh", torch.tanh)],
        ("gelu_new", lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ],
)
def test_activations(make: Make, activation: str, function: Callable[[Tensor], Tensor]) -> None:
    network, x = make(activation=activation).feed_forward, states()
    expected = network.out(function(network.hidden(x)))
    torch.testing.assert_close(network(x), expected, rtol=1e-12, atol=1e-14)


# Reading for a subset


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "centred"])
def test_reading_a_subset(make: Make, mixer: str, norm: str, causal: bool) -> None:
    """Everybody writes, a few read: the same rows as of the whole forward, in any order and with repeats."""
    block, x = make(mixer, norm, causal), states()
    valid = torch.tensor([[True] * 5, [False, False, True, True, True], [True, True, True, True, False]])
    source = source_of(block)
    whole, _ = block(x, valid=valid, source=source)
    memory, positions = block.write(x, valid), torch.tensor([[4, 0, 2], [2, 3, 4], [3, 1, 1]])
    index = positions.unsqueeze(-1).expand(-1, -1, WIDTH)
    subset = block.read(x.gather(1, index), memory, positions, source=source)
    torch.testing.assert_close(subset, whole.gather(1, index), rtol=1e-10, atol=1e-12)


def test_reading_everything_is_the_forward(make: Make, mixer: str, norm: str) -> None:
    block, x = make(mixer, norm), states()
    source, run = source_of(block), masks()["per token"]
    whole, memory = block(x, source=source, gate=Gate(run))
    assert torch.equal(block.read(x, block.write(x), source=source, gate=Gate(run)), whole)
    assert memory.length == STEPS


def test_reading_a_subset_with_a_gate(make: Make) -> None:
    block, x, positions = make("cnn"), states(), torch.tensor([[3, 1], [0, 4], [2, 2]])
    index = positions.unsqueeze(-1).expand(-1, -1, WIDTH)
    source, weight = source_of(block), torch.rand(ROWS, STEPS)
    whole, _ = block(x, source=source, gate=Gate(weight=weight))
    gate = Gate(weight=weight.gather(1, positions))
    subset = block.read(x.gather(1, index), block.write(x), positions, source=source, gate=gate)
    torch.testing.assert_close(subset, whole.gather(1, index), rtol=1e-10, atol=1e-12)


def test_a_block_continues_a_past(make: Make, mixer: str, norm: str) -> None:
    block, x = make(mixer, norm), states()
    source = source_of(block)
    whole, _ = block(x, source=source)
    _, past = block(x[:, :3], source=source)
    later, memory = block(x[:, 3:], past=past, source=source)
    torch.testing.assert_close(later, whole[:, 3:], rtol=1e-10, atol=1e-12)
    assert memory.length == STEPS


# Dropout


@pytest.mark.parametrize(
    ("mixer", "option"),
    [
        ("attention", "dropout"),
        ("attention", "attention_dropout"),
        ("attention", "activation_dropout"),
        ("lightconv", "input_dropout"),
        ("lightconv", "dropconnect"),
        ("dynamicconv", "dropconnect"),
    ],
)
def test_dropout_acts_in_training_only(make: Make, mixer: str, option: str) -> None:
    block, plain, x = make(mixer, **{option: 0.5}), make(mixer), states()
    plain.load_state_dict(block.state_dict())
    source = source_of(block)
    expected = plain(x, source=source)[0]
    assert torch.equal(block(x, source=source)[0], expected)
    block.train()
    assert not torch.allclose(block(x, source=source)[0], expected)
