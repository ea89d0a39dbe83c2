"""One prediction per sequence: pooling over real tokens, and the three kinds of labels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from depthwise.models.pooling import first_token, max_and_mean

PADDING = 1
HEAD = "sequence_classification"
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


def pooled_by_hand(hidden: Tensor, valid: Tensor) -> Tensor:
    """ReLU([max; mean]) over the real tokens of each row, in plain loops."""
    rows = []
    for states, real in zip(hidden, valid, strict=True):
        kept = states[real]
        highest = torch.stack([max(column) for column in kept.T])
        mean = sum(kept) / len(kept)
        rows.append(torch.cat([highest, mean]).clamp(min=0))
    return torch.stack(rows)


def test_maximum_and_mean_over_real_tokens() -> None:
    hidden = torch.randn(3, 5, 4, dtype=torch.float64)
    valid = torch.tensor([[True] * 5, [False, False, True, True, False], [False, True, False, False, False]])
    torch.testing.assert_close(max_and_mean(hidden, valid), pooled_by_hand(hidden, valid), rtol=0, atol=1e-15)
    everything = torch.ones(3, 5, dtype=torch.bool)
    torch.testing.assert_close(max_and_mean(hidden, None), pooled_by_hand(hidden, everything), rtol=0, atol=1e-15)


def test_padding_is_not_the_maximum() -> None:
    """Nor does it count for the mean, whatever stands on it."""
    hidden = torch.tensor([[[3.0], [1.0], [5.0]], [[1.0], [float("inf")], [float("nan")]]])
    valid = torch.tensor([[True, True, False], [True, False, False]])
    assert max_and_mean(hidden, valid).tolist() == [[3.0, 2.0], [1.0, 1.0]]
    assert max_and_mean(hidden.half(), valid).isfinite().all()


def test_the_first_real_token() -> None:
    hidden = torch.randn(3, 4, 2)
    valid = torch.tensor([[True] * 4, [False, False, True, True], [True, True, False, False]])
    expected = torch.stack([hidden[0, 0], hidden[1, 2], hidden[2, 0]])
    assert torch.equal(first_token(hidden, valid), expected)
    assert torch.equal(first_token(hidden, None), hidden[:, 0])


@pytest.mark.parametrize("pooling", ["max_mean", "first"])
def test_padding_on_either_side(build: Model, draw_ids: Ids, mixer: str, pooling: str) -> None:
    model, ids = build(HEAD, mixer, pooling=pooling), draw_ids(padding=[0, 3, -2])
    logits = model(ids).logits
    for row in range(3):
        real = ids[row][ids[row] != PADDING].unsqueeze(0)
        torch.testing.assert_close(logits[row], model(real).logits[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("pooling", "width"), [("max_mean", 16), ("first", 8)])
def test_the_width_of_the_classifier(build: Model, pooling: str, width: int) -> None:
    assert build(HEAD, pooling=pooling, num_labels=5).classifier.weight.shape == (5, width)


# Labels


@pytest.mark.parametrize("problem", [None, "single_label_classification"])
def test_one_label_of_several(build: Model, draw_ids: Ids, problem: str | None) -> None:
    model = build(HEAD, num_labels=3, problem_type=problem)
    output = model(draw_ids(), labels=torch.tensor([2, 0]))
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits, torch.tensor([2, 0])))


@pytest.mark.parametrize("problem", [None, "multi_label_classification"])
def test_several_labels(build: Model, draw_ids: Ids, problem: str | None) -> None:
    model, labels = build(HEAD, num_labels=3, problem_type=problem), torch.tensor([[1.0, 0, 1], [0, 0, 0]])
    output = model(draw_ids(), labels=labels)
    expected = F.binary_cross_entropy_with_logits(output.logits, labels.double())
    torch.testing.assert_close(output.loss, expected)
    counted = model(draw_ids(), labels=labels, num_items_in_batch=12)
    expected = F.binary_cross_entropy_with_logits(counted.logits, labels.double(), reduction="sum") / 12
    torch.testing.assert_close(counted.loss, expected)


def test_several_labels_as_whole_numbers(build: Model, draw_ids: Ids) -> None:
    model, labels = build(HEAD, num_labels=2, problem_type="multi_label_classification"), torch.tensor([[1, 0], [1, 1]])
    output = model(draw_ids(), labels=labels)
    torch.testing.assert_close(output.loss, F.binary_cross_entropy_with_logits(output.logits, labels.double()))


@pytest.mark.parametrize("problem", [None, "regression"])
@pytest.mark.parametrize("labels", [torch.tensor([0.5, -2.0]), torch.tensor([[0.5], [-2.0]]), torch.tensor([1, 3])])
def test_regression(build: Model, draw_ids: Ids, problem: str | None, labels: Tensor) -> None:
    model = build(HEAD, num_labels=1, problem_type=problem)
    output = model(draw_ids(), labels=labels)
    torch.testing.assert_close(output.loss, F.mse_loss(output.logits.flatten(), labels.double().flatten()))


def test_regression_on_several_numbers(build: Model, draw_ids: Ids) -> None:
    model, labels = build(HEAD, num_labels=3, problem_type="regression"), torch.randn(2, 3, dtype=torch.float64)
    output = model(draw_ids(), labels=labels)
    torch.testing.assert_close(output.loss, F.mse_loss(output.logits, labels))


@pytest.mark.parametrize("pooling", ["max_mean", "first", "first_tanh"])
def test_dropout_before_the_scores(build: Model, draw_ids: Ids, pooling: str) -> None:
    model, ids = build(HEAD, pooling=pooling, classifier_dropout=0.5), draw_ids()
    seen: list[Tensor] = []
    model.classifier.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model(ids)
    model.train()(ids)
    whole, dropped = seen
    assert ((dropped == 0) | torch.isclose(dropped, 2 * whole)).all()
    assert 0 < (dropped == 0)[whole != 0].sum() < (whole != 0).sum()


def test_pooling_by_the_encoder(build: Model, draw_ids: Ids) -> None:
    model, ids = build(HEAD, pooling="first_tanh", num_labels=3), draw_ids(padding=[0, 2])
    output, pooler = model(ids), model.model.pooler
    expected = torch.tanh(output.last_hidden_state[:, 0] @ pooler.weight.T + pooler.bias)
    torch.testing.assert_close(output.pooler_output, expected)
    torch.testing.assert_close(output.logits, expected @ model.classifier.weight.T + model.classifier.bias)
