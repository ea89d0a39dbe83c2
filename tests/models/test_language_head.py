"""Scores of the vocabulary behind a dense layer, at the width of the embeddings, with a bias."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from depthwise.models.language_head import LanguageHead

HEADS = ("masked_lm", "causal_lm", "seq2seq")
Model = Callable[..., Any]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("width", [None, 5])
def test_a_transform_by_hand(build: Model, draw_batch: Callable[..., Any], head: str, width: int | None) -> None:
    stack = {"norm_epsilon": 0.01}
    model = build(head, head_transform="gelu_new", embedding_width=width, stack=stack)
    output, ours = model(**draw_batch(head)), model.head
    assert ours.transform.dense.weight.shape == (width or 8, 8)
    y = F.linear(output.last_hidden_state, ours.transform.dense.weight, ours.transform.dense.bias)
    y = 0.5 * y * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * y**3)))
    y = F.layer_norm(y, y.shape[-1:], ours.transform.norm.weight, ours.transform.norm.bias, 0.01)
    side = model.model.decoder if model.model.encoder is None else model.model.encoder
    assert ours.weight is side.embedding.tokens.weight
    torch.testing.assert_close(output.logits, y @ side.embedding.tokens.weight.T + ours.bias)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("tied", ["all", "none"])
def test_embeddings_of_their_own_width(build: Model, draw_batch: Callable[..., Any], head: str, tied: str) -> None:
    """Without a transform a linear map leads from the states to that width."""
    model = build(head, embedding_width=5, tied_embeddings=tied)
    output = model(**draw_batch(head))
    narrow = F.linear(output.last_hidden_state, model.head.transform.weight, model.head.transform.bias)
    assert model.head.weight.shape == (17, 5)
    torch.testing.assert_close(output.logits, narrow @ model.head.weight.T)


def test_every_way_to_ask_agrees(build: Model) -> None:
    head: LanguageHead = build("masked_lm", head_transform="relu", embedding_width=5).head
    hidden, labels = torch.randn(6, 8, dtype=torch.float64), torch.randint(0, 17, (6,))
    log_prob = head(hidden).log_softmax(-1)
    torch.testing.assert_close(head.log_prob(hidden), log_prob)
    torch.testing.assert_close(head.nll(hidden, labels), -log_prob.gather(1, labels[:, None])[:, 0])
    torch.testing.assert_close(head.top(hidden, 3).values, log_prob.topk(3).values)


@pytest.mark.parametrize("tied", ["all", "none"])
@pytest.mark.parametrize("options", [{"head_transform": "gelu"}, {"embedding_width": 5}], ids=str)
def test_a_vocabulary_that_grows_keeps_the_transform(
    build: Model, draw_ids: Callable[..., Tensor], tied: str, options: dict[str, Any]
) -> None:
    model, ids = build("masked_lm", tied_embeddings=tied, **options), draw_ids()
    before = model(ids).logits
    model.resize_token_embeddings(20, mean_resizing=False)
    after = model(ids).logits
    assert after.shape[-1] == 20
    torch.testing.assert_close(after[..., :17], before, rtol=0, atol=1e-12)
    assert (model.head.weight is model.model.get_input_embeddings().weight) == (tied == "all")
