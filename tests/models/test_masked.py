"""The masked executor: plans of depths per token, against copies, truncated models and a loop over single tokens."""

import copy
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from depthwise.config import NORMS
from depthwise.depth import Plan
from depthwise.errors import ConfigError, InputError
from depthwise.models.masked import run_masked
from depthwise.models.stack import Stack

PADDING, LAYERS, STEPS = 1, 3, 4
DEEP = {"num_layers": LAYERS}
LEFT_FIRST = torch.tensor([[1, 3]])  # the first of two tokens leaves after one block
Model = Callable[..., Any]
Ids = Callable[..., Tensor]
with_fixtures = hypothesis.settings(
    max_examples=10,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def constant(depth: int, rows: int = 2, steps: int = STEPS) -> Plan:
    return Plan.of_depths(torch.full((rows, steps), depth), LAYERS)


def random_depths(rows: int = 2, steps: int = STEPS) -> Plan:
    return Plan.of_depths(torch.randint(0, LAYERS + 1, (rows, steps)), LAYERS)


def side_of(model: Any) -> Any:
    return model.model.encoder if model.model.decoder is None else model.model.decoder


def truncated(model: Any, layers: list[int]) -> Any:
    """The model with only these blocks left."""
    shallow = copy.deepcopy(model)
    stack = side_of(shallow).stack
    stack.layers = torch.nn.ModuleList(stack.layers[layer] for layer in layers)
    side = "encoder" if shallow.model.decoder is None else "decoder"
    setattr(shallow.config, side, {**getattr(shallow.config, side), "num_layers": len(layers)})
    return shallow


def count_blocks(stack: Stack) -> list[int]:
    calls: list[int] = []
    for layer, block in enumerate(stack.layers):
        block.register_forward_hook(lambda *_, layer=layer: calls.append(layer))
    return calls


# Depths that are the same for all tokens


@pytest.mark.parametrize("head", ["causal_lm", "token_classification"])
def test_full_depth_is_the_plain_model(build: Model, draw_ids: Ids, mixer: str, norm: str, head: str) -> None:
    model, ids = build(head, mixer, norm, stack=DEEP), draw_ids(steps=STEPS)
    planned, plain = model(ids, plan=constant(LAYERS)), model(ids)
    assert torch.equal(planned.logits, plain.logits)
    assert torch.equal(planned.depths, plain.depths)


@pytest.mark.parametrize("head", ["causal_lm", "masked_lm"])
def test_one_depth_for_all_is_a_truncated_model(build: Model, draw_ids: Ids, mixer: str, norm: str, head: str) -> None:
    """Loss, logits and gradients in training."""
    model, ids = build(head, mixer, norm, stack=DEEP).train(), draw_ids(steps=STEPS)
    for depth in (1, 2) if norm == "pre" else (2,):
        shallow = truncated(model, list(range(depth)))
        planned, plain = model(ids, labels=ids, plan=constant(depth)), shallow(ids, labels=ids)
        assert torch.equal(planned.logits, plain.logits)
        model.zero_grad()
        planned.loss.backward()
        plain.loss.backward()
        weights = dict(model.named_parameters())
        kept = dict(shallow.named_parameters())
        assert all(torch.equal(weights[name].grad, weight.grad) for name, weight in kept.items())
        assert all(weights[name].grad is None for name in weights.keys() - kept.keys())


@pytest.mark.parametrize("layers", [[0, 2], [1], [2], []], ids=str)
def test_skipped_layers_are_pruned_layers(build: Model, draw_ids: Ids, norm: str, layers: list[int]) -> None:
    model, ids = build("causal_lm", "dynamicconv", norm, stack=DEEP), draw_ids(steps=STEPS)
    run = torch.zeros(LAYERS, 2, STEPS, dtype=torch.bool)
    run[layers] = True
    output = model(ids, plan=Plan(run))
    assert torch.equal(output.logits, truncated(model, layers)(ids).logits)
    assert torch.equal(output.depths, torch.full((2, STEPS), len(layers)))


def test_both_sides_of_a_translation_have_a_plan(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, source, target = build("seq2seq", mixer, stack=DEEP), draw_ids(steps=5), draw_ids(steps=STEPS)
    output = model(source, decoder_input_ids=target, plan=constant(1), encoder_plan=constant(2, steps=5))
    shallow = truncated(model, [0])
    shallow.model.encoder.stack.layers = shallow.model.encoder.stack.layers[:2]
    assert torch.equal(output.logits, shallow(source, decoder_input_ids=target).logits)
    assert torch.equal(output.depths, torch.full((2, STEPS), 1))
    assert torch.equal(output.encoder_depths, torch.full((2, 5), 2))


# Depths of their own


def token_by_token(stack: Stack, x: Tensor, plan: Plan, valid: Tensor | None) -> list[Tensor]:
    """States by depth, each token read by itself from what everybody wrote."""
    hidden = [x]
    for layer in range(LAYERS):
        block, before, after = stack.block(layer), hidden[-1], hidden[-1].clone()
        memory = block.write(before, valid)
        for step in range(x.shape[1]):
            positions = torch.full((x.shape[0], 1), step)
            read = block.read(before[:, step : step + 1], memory, positions)
            after[:, step] = torch.where(plan.run[layer, :, step].unsqueeze(-1), read[:, 0], before[:, step])
        hidden.append(after)
    return hidden


@hypothesis.given(data=st.data())
@hypothesis.settings(with_fixtures)
def test_random_plans(build: Model, draw_ids: Ids, mixer: str, data: st.DataObject) -> None:
    """Prefixes of the stack and arbitrary subsets of it, with padding, in encoders and decoders."""
    head = data.draw(st.sampled_from(["causal_lm", "token_classification"]))
    norm = data.draw(st.sampled_from(NORMS))
    steps = data.draw(st.integers(1, 5))
    padding = data.draw(st.lists(st.integers(1 - steps, steps - 1), min_size=1, max_size=3))
    model, ids = build(head, mixer, norm, stack=DEEP), draw_ids(steps=steps, padding=padding)
    subset = torch.rand(LAYERS, *ids.shape) < data.draw(st.sampled_from([0.2, 0.5, 0.8]))
    plan = data.draw(st.sampled_from([Plan(subset), random_depths(*ids.shape)]))
    valid = ids != PADDING
    output = model(ids, valid, plan=plan, output_hidden_states=True)
    side = side_of(model)
    expected = token_by_token(side.stack, side.embedding(ids, valid), plan, valid)
    for actual, wanted in zip(output.hidden_by_depth, expected, strict=True):
        assert_same(actual[valid], wanted[valid])
    assert torch.equal(output.depths, plan.run.sum(0) * valid)


def test_a_token_that_left_keeps_its_state(build: Model, draw_ids: Ids, mixer: str, norm: str) -> None:
    """Bit for bit in all later layers, while its neighbours go on."""
    model, ids = build("causal_lm", mixer, norm, stack=DEEP), draw_ids(steps=STEPS)
    depths = torch.tensor([[1, 3, 0, 3], [2, 3, 3, 1]])
    hidden = model(ids, plan=Plan.of_depths(depths, LAYERS), output_hidden_states=True).hidden_by_depth
    for row, step in torch.cartesian_prod(torch.arange(2), torch.arange(STEPS)).tolist():
        depth = int(depths[row, step])
        states = [state[row, step] for state in hidden]
        assert all(torch.equal(state, states[depth]) for state in states[depth:])
        assert not any(torch.equal(states[n], states[n + 1]) for n in range(depth))


def test_copies_are_projected_again_by_later_layers(
    build: Model, draw_ids: Ids, mixer: str, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each later layer writes a token that left from its copied state, and who goes deeper sees what it wrote."""
    model, ids, plan = build("causal_lm", mixer, norm, stack=DEEP), draw_ids(1, 2), Plan.of_depths(LEFT_FIRST, LAYERS)
    block = side_of(model).stack.block(2)
    original, factor, written = block.mixer.write, 1.0, []

    def write(x: Tensor, valid: Tensor | None = None) -> Any:
        written.append(x)
        return original(torch.cat([factor * x[:, :1], x[:, 1:]], dim=1), valid)

    monkeypatch.setattr(block.mixer, "write", write)
    hidden = model(ids, plan=plan, output_hidden_states=True).hidden_by_depth
    assert torch.equal(written[0][:, 0], block.mixer_residual.enter(hidden[1])[:, 0])
    factor = 2.0
    changed = model(ids, plan=plan, output_hidden_states=True).hidden_by_depth
    assert torch.equal(changed[-1][:, 0], hidden[-1][:, 0])
    assert (changed[-1] - hidden[-1])[:, 1].abs().amax() > 1e-6


@pytest.mark.parametrize("projection", ["key", "value"])
def test_other_projections_of_a_later_layer_move_only_those_who_run(
    build: Model, draw_ids: Ids, projection: str
) -> None:
    model, ids, plan = build("causal_lm", stack=DEEP), draw_ids(1, 2), Plan.of_depths(LEFT_FIRST, LAYERS)
    before = model(ids, plan=plan).logits
    with torch.no_grad():
        getattr(side_of(model).stack.block(2).mixer.projections, projection).weight.mul_(2)
    after = model(ids, plan=plan).logits
    assert torch.equal(before[:, 0], after[:, 0])
    assert not torch.allclose(before[:, 1], after[:, 1])


@pytest.mark.parametrize("depths", [[[0, 0], [0, 0]], [[1, 0], [0, 1]], [[1, 2], [0, 0]], [[3, 0], [0, 0]]], ids=str)
def test_it_stops_once_nobody_runs(build: Model, draw_ids: Ids, depths: list[list[int]]) -> None:
    model, ids, plan = build("causal_lm", stack=DEEP), draw_ids(steps=2), Plan.of_depths(torch.tensor(depths), LAYERS)
    calls = count_blocks(side_of(model).stack)
    output = model(ids, plan=plan, output_hidden_states=True)
    assert calls == list(range(int(plan.depths.max())))
    assert len(output.hidden_by_depth) == LAYERS + 1
    assert torch.equal(output.depths, plan.depths)


def test_nobody_runs(build: Model, draw_ids: Ids) -> None:
    """Depth 0 for all leaves the embedding, as the head sees it."""
    model, ids = build("causal_lm", stack=DEEP), draw_ids(steps=STEPS)
    decoder = side_of(model)
    expected = model.head(decoder.stack.final_norm(decoder.embedding(ids)))
    assert torch.equal(model(ids, plan=constant(0)).logits, expected)


@pytest.mark.parametrize("head", ["causal_lm", "token_classification"])
def test_the_depth_of_padding_does_not_matter(build: Model, draw_ids: Ids, mixer: str, head: str) -> None:
    model, ids = build(head, mixer, stack=DEEP), draw_ids(steps=STEPS, padding=[2, -1])
    valid = ids != PADDING
    depths = torch.randint(1, LAYERS + 1, ids.shape)
    one, other = (model(ids, valid, plan=Plan.of_depths(depths.masked_fill(~valid, pad), LAYERS)) for pad in (0, 3))
    assert_same(one.logits[valid], other.logits[valid])
    assert torch.equal(one.depths, depths * valid)
    assert torch.equal(other.depths, depths * valid)


def test_rows_do_not_touch_each_other(build: Model, draw_ids: Ids, mixer: str, norm: str) -> None:
    model, ids = build("token_classification", mixer, norm, stack=DEEP), draw_ids(steps=STEPS, padding=[0, 2, -1])
    valid, plan = ids != PADDING, random_depths(3)
    whole = model(ids, valid, plan=plan).logits
    for row, real in enumerate(valid):
        alone = model(ids[row, real].unsqueeze(0), plan=Plan(plan.run[:, row : row + 1, real]))
        assert_same(whole[row, real], alone.logits[0])


# Gradients


@pytest.mark.parametrize("mixer", ["attention", "dynamicconv", "average"])
def test_gradients_of_states_and_soft_gates(build: Model, mixer: str) -> None:
    stack = side_of(build("causal_lm", mixer, stack={**DEEP, "activation": "tanh"})).stack
    x = torch.randn(1, 3, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(LAYERS, 1, 3, dtype=torch.float64, requires_grad=True)
    run = torch.tensor([[[1, 1, 1]], [[0, 1, 0]], [[1, 0, 1]]]).bool()

    def final(x: Tensor, weight: Tensor) -> Tensor:
        return run_masked(stack, x, Plan(run, weight)).final

    assert torch.autograd.gradcheck(final, (x, weight))


def test_soft_plans_are_gates_by_layer(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, ids = build("causal_lm", mixer, stack=DEEP), draw_ids(steps=STEPS)
    decoder = side_of(model)
    plan = Plan(torch.rand(LAYERS, 2, STEPS) < 0.7, torch.rand(LAYERS, 2, STEPS))
    x = decoder.embedding(ids)
    for layer in range(LAYERS):
        x, _ = decoder.stack.run_layer(layer, x, gate=plan.gate(layer))
    assert torch.equal(model(ids, plan=plan, output_hidden_states=True).hidden_by_depth[-1], x)


def test_soft_plans_on_post_norm_are_refused(build: Model, draw_ids: Ids) -> None:
    model, plan = build("causal_lm", "attention", "post", stack=DEEP), constant(LAYERS)
    with pytest.raises(ConfigError, match='a soft gate needs norm "pre" or "none"; with "post" use a hard gate'):
        model(draw_ids(steps=STEPS), plan=Plan(plan.run, plan.run.double()))


# Bad plans


@pytest.mark.parametrize("shape", [(2, 2, 4), (3, 1, 4), (3, 2, 5)])
def test_plans_of_another_shape(build: Model, draw_ids: Ids, shape: tuple[int, int, int]) -> None:
    plan = Plan(torch.ones(shape, dtype=torch.bool))
    with pytest.raises(InputError) as raised:
        build("causal_lm", stack=DEEP)(draw_ids(steps=STEPS), plan=plan)
    expected = f"the plan is for (layers, rows, steps) = {shape}, the input has (3, 2, 4)"
    assert str(raised.value) == expected
