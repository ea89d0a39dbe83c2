"""The masked language model beyond what all heads share: scores at some places, and the order of segments."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from depthwise.errors import ConfigError, InputError
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.models.objective import ExitObjective

IGNORED = -100
IDS = torch.tensor([[5, 6, 7, 2], [8, 2, 1, 1], [9, 5, 2, 1]])
LABELS = torch.tensor([[IGNORED, 6, 7, IGNORED], [8, *[IGNORED] * 3], [IGNORED] * 4])
ORDER = torch.tensor([1, 0, 1])


def build(**options: Any) -> DepthwiseForMaskedLM:
    stack = {"num_layers": options.pop("num_layers", 1), "num_heads": 2, "ffn_width": 16, "dropout": 0.0}
    model = DepthwiseForMaskedLM(DepthwiseConfig(vocab_size=12, width=8, encoder=stack, **options)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def test_scores_at_some_places() -> None:
    model = build()
    everywhere = model(IDS, labels=LABELS)
    places = (LABELS.flatten() != IGNORED).nonzero().squeeze(1)
    there = model(IDS, labels=LABELS, label_places=places)
    torch.testing.assert_close(there.logits, everywhere.logits.flatten(0, 1)[places])
    torch.testing.assert_close(there.loss, everywhere.loss)
    assert model(IDS, label_places=places).loss is None
    nowhere = model(IDS, labels=torch.full_like(LABELS, IGNORED), label_places=places[:0])
    assert nowhere.loss == 0
    nowhere.loss.backward()


def weighted(logits: Tensor, order: Tensor, weights: list[float]) -> Tensor:
    nll = F.cross_entropy(logits, order, reduction="none")
    return (nll * torch.tensor(weights)).sum()


@pytest.mark.parametrize("pooling", ["max_mean", "first", "first_tanh"])
def test_both_losses_are_added_up(pooling: str) -> None:
    model = build(sentence_order=True, pooling=pooling)
    output = model(IDS, labels=LABELS, sentence_order_label=ORDER)
    assert output.sentence_order_logits.shape == (3, 2)
    masked = model(IDS, labels=LABELS).loss
    order = weighted(output.sentence_order_logits, ORDER, [2, 1, 0])
    torch.testing.assert_close(output.loss, masked + order / 3)
    divided = model(IDS, labels=LABELS, sentence_order_label=ORDER, num_items_in_batch=7)
    torch.testing.assert_close(divided.loss, (3 * masked + order) / 7)
    alone = model(IDS, sentence_order_label=torch.tensor([1, IGNORED, 1]))
    torch.testing.assert_close(alone.loss, weighted(output.sentence_order_logits, ORDER, [1, 0, 1]) / 2)
    assert (model.model.pooler is not None) == (pooling == "first_tanh")


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = build(sentence_order=True, pooling="first_tanh")
    model.save_pretrained(tmp_path)
    loaded = DepthwiseForMaskedLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert loaded.config.sentence_order
    ours, theirs = loaded(IDS), model(IDS)
    torch.testing.assert_close(ours.sentence_order_logits, theirs.sentence_order_logits)
    torch.testing.assert_close(ours.logits, theirs.logits)


def test_without_the_head() -> None:
    model = build(pooling="first_tanh")
    assert model.sentence_order is None
    assert model.model.pooler is None
    assert model(IDS).sentence_order_logits is None
    with pytest.raises(InputError, match="has no head for sentence_order_label; set sentence_order, or leave it out"):
        model(IDS, sentence_order_label=ORDER)


def test_labels_of_the_order_are_checked() -> None:
    with pytest.raises(InputError, match="holds 2, outside the 2 classes"):
        build(sentence_order=True)(IDS, sentence_order_label=torch.tensor([0, 2, 1]))


def test_encoders_only() -> None:
    with pytest.raises(ConfigError, match=r"sentence_order +serves encoders without a decoder only"):
        DepthwiseConfig(vocab_size=12, decoder={}, sentence_order=True)


@pytest.mark.parametrize("heads", ["tied", "separate"])
def test_exits_learn_from_masked_places_alone(heads: str) -> None:
    model = build(num_layers=3, exits={"heads": heads})
    places = (LABELS.flatten() != IGNORED).nonzero().squeeze(1)
    objective = ExitObjective(weights=(1.0, 2.0, 1.0))
    everywhere = model(IDS, labels=LABELS, objective=objective, num_items_in_batch=3)
    there = model(IDS, labels=LABELS, label_places=places, objective=objective, num_items_in_batch=3)
    torch.testing.assert_close(there.loss, everywhere.loss)
    torch.testing.assert_close(there.exit_nll, everywhere.exit_nll)
    assert there.exit_items.tolist() == [3, 3, 3]
    chosen = torch.randint(3, IDS.shape)
    mixed = ExitObjective(chosen=chosen)
    both = [model(IDS, labels=LABELS, objective=mixed, **given).loss for given in ({}, {"label_places": places})]
    torch.testing.assert_close(both[0], both[1])


def test_what_exits_guess_right_is_counted_where_they_are_judged() -> None:
    model = build(num_layers=3, exits={})
    found = model(IDS, labels=LABELS, objective=ExitObjective(weights=(1.0, 1.0, 1.0)))
    last = model(IDS).logits.argmax(-1)
    assert found.exit_correct[-1] == ((last == LABELS) & (LABELS != IGNORED)).sum()
    assert model.train()(IDS, labels=LABELS, objective=ExitObjective(weights=(1.0, 1.0, 1.0))).exit_correct is None


def test_exits_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="do not judge the order of segments; remove sentence_order"):
        build(num_layers=2, exits={}, sentence_order=True)
    with pytest.raises(ConfigError, match="token would have to be learned"):
        build(num_layers=2, exits={}, policy={"kind": "token"})
    model = build(num_layers=2, exits={}, policy={"kind": "confidence", "threshold": 0.9})
    assert model.trained_policy is None
    with pytest.raises(InputError, match="exits learn from labels"):
        model(IDS, objective=ExitObjective(weights=(1.0, 1.0)))
