"""Weights of Transformers under our names: nothing lost, nothing made up, every mismatch named."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    PreTrainedConfig,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
)

from depthwise.errors import ConfigError
from depthwise.interop.hf import convert_weights, options_from_config
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.models.sequence_classification import DepthwiseForSequenceClassification

SMALL = {
    **{"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 12, "max_position_embeddings": 20},
}
MODELS = {
    "bert": (BertConfig(**SMALL), BertForMaskedLM),
    "roberta": (RobertaConfig(**SMALL), RobertaForMaskedLM),
    "albert": (AlbertConfig(**SMALL, embedding_size=4), AlbertForMaskedLM),
}
REMEDY = "check that config.json belongs to these weights"


def empty(config: PreTrainedConfig, kind: Any = DepthwiseForMaskedLM) -> Any:
    with torch.device("meta"):
        return kind(DepthwiseConfig.from_options(options_from_config(config), pad_token_id=config.pad_token_id))


def problems_of(weights: dict[str, Tensor], config: PreTrainedConfig) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as raised:
        convert_weights(weights, config, empty(config))
    assert raised.value.source == "weights"
    return [(problem.option, problem.message) for problem in raised.value.problems]


@pytest.mark.parametrize("family", MODELS)
def test_every_weight_has_its_place(family: str) -> None:
    config, kind = MODELS[family]
    weights, model = kind(config).state_dict(), empty(config)
    converted = convert_weights(weights, config, model)
    assert set(converted.weights) == set(model.state_dict())
    assert converted.left_out == []
    assert converted.weights["head.weight"] is converted.weights["model.encoder.embedding.tokens.weight"]


def test_a_classifier_of_roberta_has_its_own_dense_layer() -> None:
    """Files of early versions hold an unused pooler beside it."""
    config = RobertaConfig(**SMALL)
    weights = RobertaForSequenceClassification(config).state_dict()
    pooler = {"roberta.pooler.dense.weight": torch.ones(8, 8), "roberta.pooler.dense.bias": torch.ones(8)}
    converted = convert_weights(
        {**pooler, **weights, **pooler}, config, empty(config, DepthwiseForSequenceClassification)
    )
    assert torch.equal(converted.weights["model.pooler.weight"], weights["classifier.dense.weight"])
    assert converted.left_out == list(pooler)


def test_weights_left_over_and_missing() -> None:
    config, kind = MODELS["bert"]
    weights = kind(config).state_dict()
    weights["bert.encoder.layer.2.output.dense.bias"] = weights.pop("bert.encoder.layer.1.output.dense.bias")
    weights["bert.encoder.layer.0.adapter.weight"] = weights["other"] = torch.ones(2)
    named = "bert.encoder.layer.2.output.dense.bias, bert.encoder.layer.0.adapter.weight, other"
    assert problems_of(weights, config) == [
        ("left over", f"no place in this model for {named}; {REMEDY}"),
        (
            "missing",
            "nothing among the weights for model.encoder.stack.layers.1.feed_forward.out.bias; " + REMEDY,
        ),
    ]


def test_groups_that_the_configuration_does_not_have() -> None:
    config, kind = MODELS["albert"]
    weights = kind(config).state_dict()
    key = "albert.encoder.albert_layer_groups.1.albert_layers.0.ffn.bias"
    weights[key] = torch.ones(12)
    assert problems_of(weights, config) == [("left over", f"no place in this model for {key}; {REMEDY}")]


def test_many_names_are_counted() -> None:
    config, kind = MODELS["bert"]
    weights = {**kind(config).state_dict(), **{f"other.{number}": torch.ones(1) for number in range(15)}}
    ((_, message),) = problems_of(weights, config)
    assert message.endswith(f"other.11 and 3 more; {REMEDY}")


def test_weights_of_another_shape() -> None:
    config, kind = MODELS["bert"]
    weights = kind(config).state_dict()
    weights["bert.embeddings.LayerNorm.weight"] = torch.ones(9)
    expected = f"has shape (9,), but the options ask for (8,); {REMEDY}"
    assert problems_of(weights, config) == [("bert.embeddings.LayerNorm.weight", expected)]


def test_a_tied_weight_of_another_shape_is_named_once() -> None:
    config, kind = MODELS["bert"]
    weights = kind(config).state_dict()
    del weights["cls.predictions.decoder.weight"]
    weights["bert.embeddings.word_embeddings.weight"] = torch.ones(31, 8)
    expected = f"has shape (31, 8), but the options ask for (30, 8); {REMEDY}"
    assert problems_of(weights, config) == [("bert.embeddings.word_embeddings.weight", expected)]


def test_tied_weights_that_differ() -> None:
    config, kind = MODELS["bert"]
    weights = {key: value.clone() for key, value in kind(config).state_dict().items()}
    weights["cls.predictions.decoder.weight"] += 1
    weights["cls.predictions.decoder.bias"] += 1
    remedy = "set tie_word_embeddings to false in config.json if that is meant"
    assert problems_of(weights, config) == [
        (
            "cls.predictions.decoder.bias",
            "differs from cls.predictions.bias, to which it is tied; remove one of them, or keep the encoder alone "
            "with --bare",
        ),
        (
            "cls.predictions.decoder.weight",
            f"differs from bert.embeddings.word_embeddings.weight, to which the options tie it; {remedy}",
        ),
    ]


@pytest.mark.parametrize("family", MODELS)
def test_files_hold_tied_weights_once(family: str) -> None:
    """The bias and the matrix of the vocabulary under either of their names, as the one who saved them chose."""
    config, kind = MODELS[family]
    weights, model = kind(config).state_dict(), empty(config)
    output = next(key for key in weights if key.endswith("decoder.weight"))
    bias, embeddings = output.replace("weight", "bias"), f"{family}.embeddings.word_embeddings.weight"
    for absent in product((bias, bias.replace("decoder.", "")), (output, embeddings)):
        once = {key: value for key, value in weights.items() if key not in absent}
        assert set(convert_weights(once, config, model).weights) == set(model.state_dict())
