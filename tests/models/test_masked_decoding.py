"""Decoding with a plan for every step equals one forward with the same depths, and so does going on from kept rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.depth import Plan

PADDING, LAYERS, STEPS = 1, 3, 5
DEEP = {"num_layers": LAYERS}
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def plans(kind: str, rows: int) -> Plan:
    if kind == "prefix":
        return Plan.of_depths(torch.randint(1, LAYERS + 1, (rows, STEPS)), LAYERS)
    return Plan(torch.rand(LAYERS, rows, STEPS) < 0.5)


def decode(model: Any, ids: Tensor, plan: Plan, sizes: list[int], mask: Tensor | None = None, **inputs: Any) -> Any:
    """Logits and depths of all steps, a chunk at a time."""
    name, mask_name = ("decoder_input_ids", "decoder_attention_mask") if inputs else ("input_ids", "attention_mask")
    outputs, state, start = [], None, 0
    for size in sizes:
        here = slice(start, start + size)
        fed = {name: ids[:, here], mask_name: None if mask is None else mask[:, here]}
        chunk = Plan(plan.run[:, :, here], None if plan.weight is None else plan.weight[:, :, here])
        output = model(**inputs, **fed, plan=chunk, past_key_values=state, use_cache=True)
        state, start = output.past_key_values, start + size
        outputs.append(output)
    return tuple(torch.cat([getattr(output, name) for output in outputs], dim=1) for name in ("logits", "depths"))


@pytest.mark.parametrize("kind", ["prefix", "subset"])
def test_language_model(build: Model, draw_ids: Ids, mixer: str, norm: str, kind: str) -> None:
    model, ids, plan = build("causal_lm", mixer, norm, stack=DEEP), draw_ids(3, STEPS), plans(kind, 3)
    whole = model(ids, plan=plan)
    logits, depths = decode(model, ids, plan, [1, 1, 2, 1])
    assert_same(logits, whole.logits)
    assert torch.equal(depths, whole.depths)
    assert torch.equal(depths, plan.depths)


def test_translation(build: Model, draw_ids: Ids, mixer: str, norm: str) -> None:
    model, plan = build("seq2seq", mixer, norm, stack=DEEP), plans("prefix", 2)
    source, target = draw_ids(padding=[0, 2]), draw_ids(steps=STEPS)
    whole = model(source, decoder_input_ids=target, plan=plan).logits
    assert_same(decode(model, target, plan, [1] * STEPS, input_ids=source)[0], whole)


def test_padded_rows(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, ids = build("causal_lm", mixer, stack=DEEP), draw_ids(steps=STEPS, padding=[0, -2, 1])
    mask, plan = ids != PADDING, plans("subset", 3)
    whole = model(ids, mask, plan=plan)
    logits, depths = decode(model, ids, plan, [3, 1, 1], mask)
    assert_same(logits[mask], whole.logits[mask])
    assert torch.equal(depths, whole.depths)


def test_soft_plans(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, ids = build("causal_lm", mixer, "none", stack=DEEP), draw_ids(steps=STEPS)
    plan = Plan(plans("subset", 2).run, torch.rand(LAYERS, 2, STEPS))
    assert_same(decode(model, ids, plan, [2, 1, 2])[0], model(ids, plan=plan).logits)


def test_steps_that_run_nothing(build: Model, draw_ids: Ids, mixer: str) -> None:
    """A step of depth 0 still leaves its copy in every memory."""
    model, ids = build("causal_lm", mixer, stack=DEEP), draw_ids(1, STEPS)
    plan = Plan.of_depths(torch.tensor([[0, 3, 0, 0, 3]]), LAYERS)
    assert_same(decode(model, ids, plan, [1] * STEPS)[0], model(ids, plan=plan).logits)


def test_layers_that_nobody_runs_only_write(build: Model, draw_ids: Ids, mixer: str) -> None:
    """With a state every layer must be written, but only those that somebody runs read."""
    model, ids = build("causal_lm", mixer, stack=DEEP), draw_ids(1, 1)
    reads: list[int] = []
    for layer, block in enumerate(model.model.decoder.stack.layers):
        block.register_forward_hook(lambda *_, layer=layer: reads.append(layer))
    state = model(ids, plan=Plan.of_depths(torch.tensor([[1]]), LAYERS), use_cache=True).past_key_values
    assert reads == [0]
    assert len(state.memories) == LAYERS


def test_kept_rows_go_on_with_other_depths(build: Model, draw_ids: Ids, mixer: str, norm: str) -> None:
    model, rows, prompt = build("causal_lm", mixer, norm, stack=DEEP), [2, 0, 2], draw_ids(3, 3)
    later, plan = draw_ids(3, 2), plans("prefix", 3)
    first = Plan(plan.run[:, :, :3])
    state = model(prompt, plan=first, use_cache=True).past_key_values.keep(torch.tensor(rows))
    logits = model(later, plan=Plan(plan.run[:, :, 3:]), past_key_values=state).logits
    together = Plan(torch.cat([plan.run[:, rows, :3], plan.run[:, :, 3:]], dim=2))
    whole = model(torch.cat([prompt[rows], later], dim=1), plan=together).logits
    assert_same(logits, whole[:, 3:])
