"""Depths that come with the input: all blocks are the plain model, fewer leave states as they were."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.depth import Plan
from depthwise.engine import Engine
from depthwise.errors import InputError
from depthwise.models.outputs import DepthwiseOutput

LAYERS, STEPS = 3, 6
DEEP = {"num_layers": LAYERS}
ENCODERS = ("sequence_classification", "token_classification", "question_answering")
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


@pytest.fixture(params=ENCODERS)
def head(request: pytest.FixtureRequest) -> str:
    return request.param


def states(model: Any, ids: Tensor, depths: Tensor | None) -> DepthwiseOutput:
    return model(ids, depths=depths, output_hidden_states=True)


def test_all_blocks_are_the_plain_encoder(build: Model, draw_ids: Ids, head: str, mixer: str, norm: str) -> None:
    model, ids = build(head, mixer, norm, stack=DEEP), draw_ids(2, STEPS)
    plain, given = model(ids), model(ids, depths=torch.full_like(ids, LAYERS))
    assert torch.equal(given.logits, plain.logits)
    assert torch.equal(given.depths, plain.depths)


def test_depths_are_a_plan(build: Model, draw_ids: Ids, head: str) -> None:
    model, ids = build(head, stack=DEEP), draw_ids(2, STEPS, padding=[0, 2])
    depths = torch.randint(1, LAYERS + 1, ids.shape)
    given, planned = model(ids, depths=depths), model(ids, plan=Plan.of_depths(depths, LAYERS))
    assert torch.equal(given.logits, planned.logits)
    assert torch.equal(given.depths, depths * (ids != 1))
    torch.testing.assert_close(Engine(model)(ids, depths=depths).logits, given.logits, rtol=1e-10, atol=1e-12)


def test_who_has_left_keeps_its_state_exactly(build: Model, draw_ids: Ids, mixer: str, norm: str) -> None:
    model, ids = build("token_classification", mixer, norm, stack=DEEP), draw_ids(2, STEPS)
    depths = torch.randint(1, LAYERS + 1, ids.shape)
    depths[0, 0], depths[1, 1] = 1, LAYERS
    hidden = states(model, ids, depths).hidden_by_depth
    assert hidden is not None
    for depth in range(1, LAYERS + 1):
        left = depths == depth
        for later in range(depth, LAYERS + 1):
            assert torch.equal(hidden[later][left], hidden[depth][left])
    assert not torch.equal(hidden[-1][depths == LAYERS], hidden[1][depths == LAYERS])


def test_who_has_left_is_projected_anew_by_later_blocks(build: Model, draw_ids: Ids, norm: str) -> None:
    """Others see a copied state as the later block writes it, and would see another state otherwise."""
    model, ids = build("token_classification", norm=norm, stack=DEEP), draw_ids(1, STEPS)
    depths = torch.full_like(ids, LAYERS)
    depths[0, 2] = 1
    others = [step for step in range(STEPS) if step != 2]
    hidden, stack = states(model, ids, depths).hidden_by_depth, model.model.encoder.stack
    assert hidden is not None
    for layer in range(1, LAYERS):
        expected, _ = stack.run_layer(layer, hidden[layer])
        torch.testing.assert_close(hidden[layer + 1][0, others], expected[0, others], rtol=1e-10, atol=1e-12)
        moved = hidden[layer].clone()
        moved[0, 2] = torch.randn_like(moved[0, 2])
        assert (stack.run_layer(layer, moved)[0] - expected)[0, others].abs().max() > 1e-6


def test_depths_teach(build: Model, draw_ids: Ids) -> None:
    """A block that nobody runs learns nothing; those below do."""
    model, ids = build("sequence_classification", stack=DEEP, num_labels=3).train(), draw_ids(2, STEPS)
    depths = torch.full_like(ids, 2)
    model(ids, depths=depths, labels=torch.tensor([0, 2])).loss.backward()
    stack = model.model.encoder.stack
    has_learned = [
        any(weight.grad is not None and weight.grad.any() for weight in block.parameters()) for block in stack.layers
    ]
    assert has_learned == [True, True, False]


def test_depths_that_do_not_fit(build: Model, draw_ids: Ids, head: str) -> None:
    model, ids = build(head, stack=DEEP), draw_ids(2, STEPS)
    with pytest.raises(InputError, match=r"depths has shape \(2, 5\) but its ids have shape \(2, 6\)"):
        model(ids, depths=torch.ones(2, 5, dtype=torch.long))
    with pytest.raises(InputError, match="depths and a plan both say which blocks run; give one of them"):
        model(ids, depths=torch.ones_like(ids), plan=Plan.of_depths(torch.ones_like(ids), LAYERS))
    with pytest.raises(InputError, match="depths go from 0"):
        model(ids, depths=torch.full_like(ids, LAYERS + 1))
    with pytest.raises(InputError, match="input_ids is missing"):
        model(depths=torch.ones_like(ids))
