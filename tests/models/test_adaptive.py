"""Embeddings and softmax in bands, against the whole vocabulary at once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from depthwise.config import AdaptiveConfig
from depthwise.models.adaptive import AdaptiveEmbedding, AdaptiveHead

WIDTH, TYPES, IGNORED = 8, 17, -100
CUTOFFS = {"two bands": [6], "three bands": [6, 11], "narrow bands": [1, 2, 16], "one type in the last": [5, 16]}
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


@pytest.fixture(params=CUTOFFS.values(), ids=CUTOFFS)
def bands(request: pytest.FixtureRequest) -> AdaptiveConfig:
    return AdaptiveConfig(cutoffs=tuple(request.param), factor=2)


@pytest.fixture
def adaptive_head(bands: AdaptiveConfig, randomize: Callable[[Any], Any]) -> AdaptiveHead:
    return randomize(AdaptiveHead(TYPES, WIDTH, bands)).double()


def states(*shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH, dtype=torch.float64)


def band_of(label: int, bounds: list[int]) -> int:
    return next(band for band in range(len(bounds) - 1) if bounds[band] <= label < bounds[band + 1])


def log_prob_by_hand(head: AdaptiveHead, hidden: Tensor) -> Tensor:
    """One type at a time: the head alone, or the entry of its band there and the type within the band."""
    bounds, columns = head.bounds, []
    top = torch.cat([head.tables[0].weight, head.bands.weight]) @ hidden
    for label in range(TYPES):
        band = band_of(label, bounds)
        if band == 0:
            columns.append(top.log_softmax(0)[label])
            continue
        narrow = head.projections[band - 1].weight.T @ hidden
        within = (head.tables[band].weight @ narrow).log_softmax(0)[label - bounds[band]]
        columns.append(top.log_softmax(0)[bounds[1] + band - 1] + within)
    return torch.stack(columns)


# The softmax


def test_probabilities_sum_to_one(adaptive_head: AdaptiveHead) -> None:
    total = adaptive_head.log_prob(states(3, 2)).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones(3, 2, dtype=torch.float64), rtol=1e-12, atol=0)


def test_log_probabilities(adaptive_head: AdaptiveHead) -> None:
    hidden = states(4)
    expected = torch.stack([log_prob_by_hand(adaptive_head, state) for state in hidden])
    torch.testing.assert_close(adaptive_head.log_prob(hidden), expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(adaptive_head(hidden), adaptive_head.log_prob(hidden))


def test_it_agrees_with_torch(adaptive_head: AdaptiveHead) -> None:
    """torch's own module, given the same weights."""
    cutoffs = adaptive_head.bounds[1:-1]
    module = torch.nn.AdaptiveLogSoftmaxWithLoss(WIDTH, TYPES, cutoffs, div_value=2.0).double()
    with torch.no_grad():
        module.head.weight.copy_(torch.cat([adaptive_head.tables[0].weight, adaptive_head.bands.weight]))
        for band, (narrow, wide) in enumerate(module.tail, start=1):
            narrow.weight.copy_(adaptive_head.projections[band - 1].weight.T)
            wide.weight.copy_(adaptive_head.tables[band].weight)
    hidden = states(5)
    torch.testing.assert_close(adaptive_head.log_prob(hidden), module.log_prob(hidden), rtol=1e-10, atol=1e-12)


def test_bands_of_one_type_make_a_full_softmax(randomize: Callable[[Any], Any]) -> None:
    """With one type behind the cut its band says nothing, so the head is a softmax over the whole vocabulary."""
    head = randomize(AdaptiveHead(TYPES, WIDTH, AdaptiveConfig(cutoffs=(TYPES - 1,), factor=2))).double()
    hidden, weight = states(5), torch.cat([head.tables[0].weight, head.bands.weight])
    torch.testing.assert_close(head.log_prob(hidden), F.linear(hidden, weight).log_softmax(-1))


@pytest.mark.parametrize("labels", [list(range(TYPES)), [0, 1, 0], [16, 16], [3]], ids=["all", "head", "last", "one"])
def test_the_loss_is_the_full_log_probability(adaptive_head: AdaptiveHead, labels: list[int]) -> None:
    """Values and all gradients, also where whole bands do not occur."""
    wanted, hidden = torch.tensor(labels), states(len(labels)).requires_grad_()
    full = -adaptive_head.log_prob(hidden).gather(1, wanted.unsqueeze(1)).squeeze(1)
    loss = adaptive_head.nll(hidden, wanted)
    torch.testing.assert_close(loss, full, rtol=1e-10, atol=1e-12)
    weights = [hidden, *adaptive_head.parameters()]
    scale = torch.rand(len(labels), dtype=torch.float64)
    grads = torch.autograd.grad((loss * scale).sum(), weights, materialize_grads=True)
    for actual, expected in zip(grads, torch.autograd.grad((full * scale).sum(), weights), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_no_labels_at_all(adaptive_head: AdaptiveHead) -> None:
    assert adaptive_head.nll(states(0), torch.zeros(0, dtype=torch.long)).shape == (0,)


def test_a_band_is_scored_only_where_it_occurs(adaptive_head: AdaptiveHead) -> None:
    rows = []
    adaptive_head.tables[-1].register_forward_hook(lambda _module, args, _output: rows.append(len(args[0])))
    adaptive_head.nll(states(4), torch.tensor([0, TYPES - 1, 0, TYPES - 1]))
    assert rows == [2]


def test_the_best_types(adaptive_head: AdaptiveHead) -> None:
    hidden = states(2, 3)
    values, types = adaptive_head.top(hidden, 4)
    expected = adaptive_head.log_prob(hidden).topk(4)
    assert torch.equal(values, expected.values)
    assert torch.equal(types, expected.indices)


def test_half_precision_is_normalised_in_float32(adaptive_head: AdaptiveHead) -> None:
    head = adaptive_head.bfloat16()
    log_prob = head.log_prob(states(3).bfloat16())
    assert log_prob.dtype == torch.float32
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(3), rtol=1e-5, atol=0)


def test_dropout_between_the_two_matrices_of_a_band(randomize: Callable[[Any], Any]) -> None:
    config = AdaptiveConfig(cutoffs=(6,), factor=2, dropout=0.5)
    head, hidden = randomize(AdaptiveHead(TYPES, WIDTH, config)).double(), states(3)
    trained, tested = head.train().log_prob(hidden), head.eval().log_prob(hidden)
    assert torch.equal(trained[:, :6], tested[:, :6])
    assert not torch.allclose(trained[:, 6:], tested[:, 6:])


# The embedding


def test_each_band_has_its_table(bands: AdaptiveConfig, randomize: Callable[[Any], Any]) -> None:
    embedding = randomize(AdaptiveEmbedding(TYPES, WIDTH, bands, padding=1)).double()
    ids = torch.arange(TYPES).unsqueeze(0)
    states = embedding(ids)[0]
    for label in range(TYPES):
        band = band_of(label, embedding.bounds)
        vector = embedding.tables[band].weight[label - embedding.bounds[band]]
        assert vector.shape == (WIDTH // 2**band,)
        expected = embedding.projections[band].weight @ vector
        torch.testing.assert_close(states[label], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("padding", "band", "index"), [(1, 0, 1), (6, 1, 0), (16, 2, 5)])
def test_padding_is_found_in_its_band(padding: int, band: int, index: int) -> None:
    embedding = AdaptiveEmbedding(TYPES, WIDTH, AdaptiveConfig(cutoffs=(6, 11), factor=2), padding)
    assert [table.padding_idx for table in embedding.tables] == [index if place == band else None for place in range(3)]


# Language models


def adaptive_model(build: Model, **changes: Any) -> Any:
    adaptive = {"cutoffs": [6, 11], "factor": 2, **changes.pop("adaptive", {})}
    return build("causal_lm", adaptive=adaptive, **changes)


@pytest.mark.parametrize("tied_projections", [True, False])
@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
def test_what_is_tied_is_the_same_storage(build: Model, tied: str, tied_projections: bool) -> None:
    model = adaptive_model(build, tied_embeddings=tied, adaptive={"tied_projections": tied_projections})
    tokens, head = model.model.decoder.embedding.tokens, model.head
    for band in range(3):
        assert (head.tables[band].weight is tokens.tables[band].weight) == (tied != "none")
    for band in (1, 2):
        shared = head.projections[band - 1].weight is tokens.projections[band].weight
        assert shared == (tied != "none" and tied_projections)
    assert len(head.projections) == 2
    assert len(tokens.projections) == 3


def test_the_training_loss_is_the_full_one(build: Model, draw_ids: Ids) -> None:
    """Value and gradients of the loss that scores only the bands at hand, with tied weights and ignored labels."""
    model, ids = adaptive_model(build), draw_ids()
    labels = ids.masked_fill(torch.rand(ids.shape) < 0.3, IGNORED)
    output = model(ids, labels=labels)
    assert output.logits is None
    log_prob, wanted = model(ids).logits[:, :-1], labels[:, 1:]
    full = F.nll_loss(log_prob.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
    torch.testing.assert_close(output.loss, full, rtol=1e-10, atol=1e-12)
    weights = list(model.parameters())
    grads = torch.autograd.grad(output.loss, weights, materialize_grads=True)
    for actual, expected in zip(grads, torch.autograd.grad(full, weights, materialize_grads=True), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_the_training_loss_by_count(build: Model, draw_ids: Ids) -> None:
    model, ids = adaptive_model(build), draw_ids()
    mean, counted = model(ids, labels=ids).loss, model(ids, labels=ids, num_items_in_batch=20).loss
    torch.testing.assert_close(counted, mean * 10 / 20)
    nothing = model(ids, labels=torch.full_like(ids, IGNORED)).loss
    assert nothing == 0
    nothing.backward()
    assert not any(weight.grad.any() for weight in model.parameters() if weight.grad is not None)


def test_scores_without_labels_are_log_probabilities(build: Model, draw_ids: Ids) -> None:
    logits = adaptive_model(build)(draw_ids()).logits
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(2, 6, dtype=torch.float64))
