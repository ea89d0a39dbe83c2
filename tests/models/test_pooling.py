"""The pooler of an encoder: the first real token, and only where somebody reads it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.models.backbone import DepthwiseModel
from depthwise.models.pooling import Pooler

Config = Callable[..., Any]


def test_by_hand() -> None:
    pooler, hidden = Pooler(4).double(), torch.randn(3, 5, 4, dtype=torch.float64)
    valid = torch.tensor([[True] * 5, [False, True, True, False, False], [True, False, False, False, False]])
    first = torch.stack([hidden[0, 0], hidden[1, 1], hidden[2, 0]])
    torch.testing.assert_close(pooler(hidden, valid), torch.tanh(first @ pooler.weight.T + pooler.bias))
    torch.testing.assert_close(pooler(hidden), torch.tanh(hidden[:, 0] @ pooler.weight.T + pooler.bias))


@torch.no_grad()
def test_an_encoder_alone_pools(config_of: Config, draw_ids: Callable[..., Tensor]) -> None:
    """Also over padding on the left, where the first token is not the first real one."""
    model = DepthwiseModel(config_of("masked_lm", pooling="first_tanh")).eval()
    ids = draw_ids(padding=[0, -2])
    output = model(ids)
    first = torch.stack([output.last_hidden_state[0, 0], output.last_hidden_state[1, 2]])
    torch.testing.assert_close(output.pooler_output, torch.tanh(model.pooler.weight @ first[:, :, None])[..., 0])
    assert output.to_tuple()[-1] is output.pooler_output


@pytest.mark.parametrize("pooling", ["max_mean", "first"])
def test_other_poolings_have_no_pooler(config_of: Config, draw_ids: Callable[..., Tensor], pooling: str) -> None:
    model = DepthwiseModel(config_of("masked_lm", pooling=pooling))
    assert model.pooler is None
    assert model(draw_ids()).pooler_output is None


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm", "masked_lm", "token_classification", "question_answering"])
def test_heads_without_use_for_it(build: Callable[..., Any], head: str) -> None:
    assert build(head, pooling="first_tanh").model.pooler is None
