"""The same models on a GPU: equal results in float64, finite ones in bfloat16, the same tokens."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.depth import Plan

pytestmark = pytest.mark.gpu
PADDING = 1
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


def test_logits_and_gradients(
    build: Model, draw_batch: Callable[..., dict[str, Tensor]], mixer: str, head: str
) -> None:
    model, batch = build(head, mixer), draw_batch(head)
    here = model(**batch)
    here.loss.backward()
    expected = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    there = model.cuda()(**{name: value.cuda() for name, value in batch.items()})
    there.loss.backward()
    torch.testing.assert_close(there.logits.cpu(), here.logits, rtol=1e-9, atol=1e-9)
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad.cpu(), gradient, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_tokens(build: Model, draw_ids: Ids, mixer: str, head: str, beams: int) -> None:
    model, ids = build(head, mixer), draw_ids(padding=[0, 2, -3])
    options = {"max_new_tokens": 8, "num_beams": beams}
    here = model.generate(ids, attention_mask=ids != PADDING, **options)
    there = model.cuda().generate(ids.cuda(), attention_mask=(ids != PADDING).cuda(), **options)
    assert torch.equal(there.cpu(), here)


def test_a_plan(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, ids, depths = build("masked_lm", mixer), draw_ids(), torch.randint(0, 3, (2, 6))
    here = model(ids, plan=Plan.of_depths(depths, 2)).logits
    there = model.cuda()(ids.cuda(), plan=Plan.of_depths(depths.cuda(), 2)).logits
    torch.testing.assert_close(there.cpu(), here, rtol=1e-9, atol=1e-9)


def test_half_precision(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, ids = build("masked_lm", mixer).float(), draw_ids(padding=[0, 3])
    exact = model(ids).logits
    for dtype in (torch.bfloat16, torch.float16):
        rough = model.to(dtype).cuda()(ids.cuda()).logits.float().cpu()
        assert rough.isfinite().all()
        assert (rough - exact).norm() / exact.norm() < 0.05
