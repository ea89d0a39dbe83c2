"""Encoders with packed weights: what the model says in float32, with the weights it has now."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from depthwise.depth import Plan
from depthwise.engine import Engine
from depthwise.engine.packed_blocks import PackedBlocks, PackedLinear

Model = Callable[..., Any]
Ids = Callable[..., Tensor]


def test_they_say_what_the_model_says(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, ids = build("token_classification", mixer, "post").float(), draw_ids(padding=[0, 2, -3])
    mask = (ids != 1).long()
    plan = Plan.of_depths(torch.randint(1, 3, ids.shape) * mask, 2)
    for planned in (None, plan):
        found, expected = (run(ids, attention_mask=mask, plan=planned) for run in (Engine(model), model))
        torch.testing.assert_close(found.logits[mask.bool()], expected.logits[mask.bool()], rtol=1e-4, atol=1e-5)


def test_weights_that_changed_are_noticed(build: Model, draw_ids: Ids) -> None:
    model, ids = build("token_classification").float(), draw_ids()
    engine, feed = Engine(model), model.model.encoder.stack.layers[1].feed_forward
    before = engine(ids).logits
    with torch.no_grad():
        feed.hidden.weight.normal_()
    changed = engine(ids).logits
    torch.testing.assert_close(changed, model(ids).logits, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(changed, before)
    feed.out.weight = torch.nn.Parameter(torch.randn_like(feed.out.weight))
    torch.testing.assert_close(engine(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-5)


def test_only_float32_is_packed(build: Model) -> None:
    for model, is_packed in ((build("token_classification"), False), (build("token_classification").float(), True)):
        stack = model.model.encoder.stack
        block = PackedBlocks().block(stack.block(0))
        assert (block is stack.block(0)) == (not is_packed)
        assert isinstance(block.feed_forward.hidden, PackedLinear) == is_packed
        assert not isinstance(stack.block(0).feed_forward.hidden, PackedLinear)
