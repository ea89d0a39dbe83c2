"""Stacks: states by depth, single layers, gates for all of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthwise.config import StackConfig
from depthwise.depth import Gate
from depthwise.memory import DecodeState
from depthwise.models.stack import Source, Stack

WIDTH, ROWS, STEPS, LAYERS = 8, 2, 4, 3
Make = Callable[..., Stack]


@pytest.fixture
def make(stack_for: Callable[..., dict[str, Any]], randomize: Callable[[nn.Module], nn.Module]) -> Make:
    def make_stack(mixer: str = "attention", norm: str = "pre", **changes: Any) -> Stack:
        has_source = changes.pop("has_source", False)
        options = StackConfig(**stack_for(mixer, norm, num_layers=LAYERS, **changes))
        return randomize(Stack(options, width=WIDTH, causal=True, has_source=has_source)).double().eval()

    return make_stack


def states(steps: int = STEPS) -> Tensor:
    return torch.randn(ROWS, steps, WIDTH, dtype=torch.float64)


def test_hidden_by_depth(make: Make, mixer: str, norm: str) -> None:
    """Index 0 is what came in, index n the state after n blocks; the last norm sees the last of them."""
    stack, x = make(mixer, norm), states()
    output = stack.run_all(x, keep_hidden=True)
    assert len(output.hidden_by_depth) == LAYERS + 1
    for depth, hidden in enumerate(output.hidden_by_depth):
        assert torch.equal(hidden, x)
        if depth < LAYERS:
            x, _ = stack.run_layer(depth, x)
    assert torch.equal(output.final, stack.final_norm(x) if norm == "pre" else x)
    assert (stack.final_norm is not None) == (norm == "pre")


def test_states_in_between_are_kept_on_request_only(make: Make) -> None:
    output = make().run_all(states())
    assert output.hidden_by_depth is None
    assert output.memories is None


def test_models_return_hidden_by_depth(build: Callable[..., Any], head: str, draw_batch: Callable[..., Any]) -> None:
    model, batch = build(head), draw_batch(head)
    assert model(**batch).hidden_by_depth is None
    output = model(**batch, output_hidden_states=True)
    side = model.model.decoder if model.model.encoder is None else model.model.encoder
    if head == "seq2seq":
        side, ids, valid = model.model.decoder, model.prepare_decoder_input_ids_from_labels(batch["labels"]), None
    else:
        ids, valid = batch["input_ids"], batch["attention_mask"].bool()
    assert len(output.hidden_by_depth) == 3
    assert torch.equal(output.hidden_by_depth[0], side.embedding(ids, valid))
    assert torch.equal(side.stack.normalized(output.hidden_by_depth[-1]), output.last_hidden_state)


@pytest.mark.parametrize("final_norm", [True, False, None])
def test_the_last_norm_is_a_choice(make: Make, norm: str, final_norm: bool | None) -> None:
    stack = make("attention", norm, final_norm=final_norm)
    wanted = norm == "pre" if final_norm is None else final_norm
    assert (stack.final_norm is not None) == wanted
    output = stack.run_all(states(), keep_hidden=True)
    assert torch.equal(output.final, output.hidden_by_depth[-1]) == (not wanted)


def test_each_gate_belongs_to_its_layer(make: Make, mixer: str, norm: str) -> None:
    stack, x = make(mixer, norm), states()
    gates = [True, Gate(torch.tensor([True, False])), Gate(torch.rand(ROWS, STEPS) < 0.5)]
    output = stack.run_all(x, lambda layer, _: gates[layer], keep_hidden=True)
    for layer, gate in enumerate(gates):
        x, _ = stack.run_layer(layer, x, gate=None if gate is True else gate)
        assert torch.equal(output.hidden_by_depth[layer + 1], x)


def test_gates_see_the_states_before_their_layer(make: Make, norm: str) -> None:
    stack, x, seen = make("attention", norm), states(), []
    output = stack.run_all(x, lambda layer, hidden: seen.append(hidden) is None, keep_hidden=True)
    assert all(map(torch.equal, seen, output.hidden_by_depth))
    assert torch.equal(output.last, output.hidden_by_depth[-1])


def only_first(layer: int, x: Tensor) -> bool:
    """Opens the first layer for all, and no other for anybody."""
    assert layer < 2, "nobody is asked again behind a closed gate"
    return layer == 0


def test_closed_gates(make: Make, norm: str) -> None:
    """Layers from a closed gate on leave the states as they are, and do not run."""
    stack, x, calls = make("lightconv", norm), states(), []
    for layer, block in enumerate(stack.layers):
        block.register_forward_hook(lambda *_, layer=layer: calls.append(layer))
    output = stack.run_all(x, only_first, keep_hidden=True)
    assert calls == [0]
    assert len(output.hidden_by_depth) == LAYERS + 1
    assert all(torch.equal(hidden, output.hidden_by_depth[1]) for hidden in output.hidden_by_depth[2:])


def test_layers_behind_a_closed_gate_still_write(make: Make, mixer: str, norm: str) -> None:
    """A shallow step leaves its copied state in the memories of all layers, for deeper steps to come."""
    stack, x, later = make(mixer, norm), states(), states(2)
    state = DecodeState(stack.run_all(x, only_first, state=DecodeState()).memories, STEPS)
    deep = stack.run_all(later, state=state).final
    deeper = Gate(torch.tensor([[False] * STEPS + [True] * 2] * ROWS))
    whole = stack.run_all(torch.cat([x, later], dim=1), lambda layer, _: layer == 0 or deeper).final
    torch.testing.assert_close(deep, whole[:, STEPS:], rtol=1e-10, atol=1e-12)


def test_the_source_is_written_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = make("lightconv", has_source=True)
    writes = []
    for layer in range(LAYERS):
        cross = stack.block(layer).cross
        original = cross.write
        monkeypatch.setattr(cross, "write", lambda *args, original=original: (writes.append(1), original(*args))[1])
    source = Source(states(5), torch.ones(ROWS, 5, dtype=torch.bool))
    state = DecodeState()
    for _ in range(3):
        state = DecodeState(stack.run_all(states(1), source=source, state=state).memories, state.length + 1)
    assert len(writes) == LAYERS


# Layers that share blocks


@pytest.mark.parametrize(("shared", "blocks"), [((0,), (0, 0, 0)), ((0, 1, 0), (0, 1, 0)), ((0, 1, 1), (0, 1, 1))])
def test_shared_layers_run_the_same_blocks(
    make: Make, mixer: str, norm: str, shared: tuple[int, ...], blocks: tuple[int, ...]
) -> None:
    kernels = {"kernel_sizes": [3]} if mixer not in ("attention", "average") else {}
    stack, x = make(mixer, norm, shared_layers=shared, **kernels), states()
    apart = make(mixer, norm, **kernels)
    for layer, block in enumerate(blocks):
        apart.layers[layer].load_state_dict(stack.layers[block].state_dict())
    if stack.final_norm is not None:
        apart.final_norm.load_state_dict(stack.final_norm.state_dict())
    assert (stack.num_layers, len(stack.layers)) == (LAYERS, len(set(blocks)))
    one, other = stack.run_all(x, keep_hidden=True), apart.run_all(x, keep_hidden=True)
    assert torch.equal(one.final, other.final)
    assert all(map(torch.equal, one.hidden_by_depth, other.hidden_by_depth))


def test_a_block_that_is_run_twice_learns_from_both(make: Make) -> None:
    """Its gradient is the sum of those of separate copies."""
    stack, apart, x = make(shared_layers=(0,)), make(), states()
    for block in apart.layers:
        block.load_state_dict(stack.layers[0].state_dict())
    apart.final_norm.load_state_dict(stack.final_norm.state_dict())
    weights = torch.randn_like(x)
    for one in (stack, apart):
        (one.run_all(x).final * weights).sum().backward()
    for name, weight in stack.layers[0].named_parameters():
        copies = [block.get_parameter(name).grad for block in apart.layers]
        torch.testing.assert_close(weight.grad, sum(copies), rtol=1e-8, atol=1e-10)


def test_shared_layers_decode_step_by_step(make: Make) -> None:
    """Each layer remembers for itself, whichever block it runs."""
    stack, x, state, steps = make(shared_layers=(0,)), states(), DecodeState(), []
    for step in range(STEPS):
        output = stack.run_all(x[:, step : step + 1], state=state)
        state = DecodeState(output.memories, step + 1)
        steps.append(output.final)
    torch.testing.assert_close(torch.cat(steps, dim=1), stack.run_all(x).final, rtol=1e-10, atol=1e-12)


def test_the_epsilon_of_every_norm(make: Make, norm: str) -> None:
    stack = make("attention", norm, norm_epsilon=0.01, final_norm=True, has_source=True)
    norms = [module for module in stack.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == (1 if norm == "none" else 3 * LAYERS + 1)
    assert {module.eps for module in norms} == {0.01}


def test_layers_are_left_out_at_random_in_training_alone(make: Make, norm: str) -> None:
    """Each pass runs what its draws say, as closed gates would have it; outside training all run (LayerDrop)."""
    stack, x = make(norm=norm, layer_dropout=0.4, dropout=0.0), states()
    whole = stack.run_all(x).last
    assert torch.equal(whole, stack.run_all(x).last)
    stack.train()
    kept = []
    for seed in range(200):
        torch.manual_seed(seed)
        found = stack.run_all(x).last
        torch.manual_seed(seed)
        run = torch.rand(LAYERS) >= 0.4
        expected = stack.eval().run_all(x, lambda layer, _, run=run: Gate(run[layer])).last
        stack.train()
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
        kept.append(run.tolist())
    assert torch.tensor(kept).double().mean(0).tolist() == pytest.approx([0.6] * LAYERS, abs=0.1)


def test_dropped_layers_join_other_gates(make: Make) -> None:
    stack, x = make(layer_dropout=0.5, dropout=0.0).train(), states()
    torch.manual_seed(0)
    kept = torch.rand(LAYERS) >= 0.5
    torch.manual_seed(0)
    gates = [Gate(torch.tensor([True, False])), Gate(weight=torch.tensor(0.5).double()), False]
    found = stack.run_all(x, lambda layer, _: gates[layer]).last
    joined = [Gate(torch.tensor([True, False]) & kept[0]), Gate(kept[1], torch.tensor(0.5).double()), False]
    torch.testing.assert_close(found, stack.eval().run_all(x, lambda layer, _: joined[layer]).last)
