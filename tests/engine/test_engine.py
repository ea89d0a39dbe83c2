"""What users call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import depthwise
from depthwise.engine import Engine
from depthwise.errors import InputError

Model = Callable[..., Any]
Ids = Callable[..., Tensor]


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_generate(build: Model, draw_ids: Ids, head: str, num_beams: int) -> None:
    model = build(head, "dynamicconv")
    ids = draw_ids(padding=[0, -2, -3] if head == "causal_lm" else [0, 2, 3])
    options = {"max_new_tokens": 7, "num_beams": num_beams, "do_sample": False}
    expected = model.generate(ids, attention_mask=(ids != 1).long(), **options)
    engine = Engine(model)
    found = engine.generate(ids, **options)
    assert torch.equal(found.sequences[:, : expected.shape[1]], expected)
    assert engine.token_layers == (int((ids != 1).sum()) * 2 if head == "seq2seq" else 0)


def test_a_language_model_may_be_called(build: Model, draw_ids: Ids) -> None:
    model, ids = build("causal_lm"), draw_ids()
    torch.testing.assert_close(Engine(model)(ids).logits, model(ids).logits)


def test_a_classifier_generates_nothing(build: Model, draw_ids: Ids) -> None:
    with pytest.raises(InputError, match="call the engine itself"):
        Engine(build("token_classification")).generate(draw_ids())


def test_the_engine_is_public() -> None:
    assert depthwise.Engine is Engine
