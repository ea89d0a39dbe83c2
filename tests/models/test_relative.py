"""Models whose attention knows distances: one table for all blocks, the same numbers by every executor."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.depth import Plan
from depthwise.engine import CompactEncoder
from depthwise.models.executing import executed_by

Build = Callable[..., Any]
RELATIVE = {"max_distance": 2}


@pytest.fixture
def related(build: Build) -> Build:
    def make(head: str = "token_classification", positions: str = "none", **relative: Any) -> Any:
        stack = {"num_layers": 3, "positions": positions, "relative": {**RELATIVE, **relative}}
        return build(head, stack=stack)

    return make


@pytest.mark.parametrize("scale_terms", [False, True])
def test_distances_of_nothing_are_plain_attention(
    build: Build, related: Build, draw_ids: Any, scale_terms: bool
) -> None:
    """But for the scale."""
    model = related(scale_terms=scale_terms)
    plain = build("token_classification", stack={"num_layers": 3, "positions": "none"})
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "distances" not in name})
    with torch.no_grad():
        model.model.encoder.stack.distances.weight.zero_()
    ids = draw_ids(padding=[0, 2])
    same = torch.allclose(model(ids).logits[ids != 1], plain(ids).logits[ids != 1])
    assert same is not scale_terms


def test_only_distances_count(related: Build) -> None:
    """Padding on either side shifts nothing, and order matters."""
    model, ids = related(), torch.randint(4, 17, (1, 5))
    expected = model(ids).logits[0]
    for left, right in ((2, 0), (0, 3), (1, 2)):
        padded = torch.nn.functional.pad(ids, (left, right), value=1)
        found = model(padded).logits[0, left : left + 5]
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(model(ids.flip(1)).logits[0].flip(0), expected)


@pytest.mark.parametrize("indexing", ["deberta", "literal"])
def test_tokens_of_any_depth_read_the_same(related: Build, draw_ids: Any, indexing: str) -> None:
    model, ids = related(indexing=indexing), draw_ids(padding=[0, 3, 1, 5])
    plan = Plan(torch.rand(3, *ids.shape) < 0.6)
    expected = model(ids, plan=plan)
    with torch.inference_mode(), executed_by(CompactEncoder()):
        found = model(ids, plan=plan)
    torch.testing.assert_close(found.logits[ids != 1], expected.logits[ids != 1], rtol=1e-10, atol=1e-12)
    assert torch.equal(found.depths, expected.depths)


def test_all_blocks_teach_one_table(related: Build, draw_batch: Any) -> None:
    model = related().train()
    tables = [name for name, _ in model.named_parameters() if "distances" in name]
    assert tables == ["model.encoder.stack.distances.weight"]
    batch = draw_batch("token_classification")
    model(**batch).loss.backward()
    gradient = model.model.encoder.stack.distances.weight.grad.clone()
    assert (gradient.abs().sum(1) > 0).all()
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(**batch).loss.backward()
    torch.testing.assert_close(model.model.encoder.stack.distances.weight.grad, gradient)


def test_a_copy_has_a_table_of_its_own(related: Build, draw_ids: Callable[..., Tensor]) -> None:
    model, ids = related(), draw_ids()
    before, twin = model(ids).logits, copy.deepcopy(model)
    with torch.no_grad():
        twin.model.encoder.stack.distances.weight.mul_(3)
    assert torch.equal(model(ids).logits, before)
    assert not torch.allclose(twin(ids).logits, before)
