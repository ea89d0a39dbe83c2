"""Configurations of Transformers as our options: what is represented, and what is refused with all its problems."""

from typing import Any

import pytest
from transformers import AlbertConfig, BertConfig, PreTrainedConfig, RobertaConfig

from depthwise.config import ModelConfig, StackConfig
from depthwise.errors import CheckpointError, ConfigError
from depthwise.interop.hf import model_class, options_from_config, parse_config
from depthwise.interop.hf_options import layer_blocks
from depthwise.models.backbone import DepthwiseModel
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.models.sequence_classification import DepthwiseForSequenceClassification

COMMON = {"norm": "post", "positions": "learned", "dropout": 0.1, "attention_dropout": 0.1, "activation": "gelu"}
EVERY = {"scale_embedding": False, "embedding_norm": True, "pooling": "first_tanh"}


def test_bert_base() -> None:
    stack = StackConfig(num_layers=12, num_heads=12, ffn_width=3072, norm_epsilon=1e-12, max_positions=512, **COMMON)
    expected = {"token_types": 2, "head_transform": "gelu", "classifier_dropout": 0.1, **EVERY}
    assert options_from_config(BertConfig()) == ModelConfig(vocab_size=30522, width=768, encoder=stack, **expected)


def test_roberta_base() -> None:
    config = RobertaConfig(
        vocab_size=50265,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        classifier_dropout=0.3,
        hidden_act="relu",
    )
    stack = StackConfig(
        num_layers=12, num_heads=12, ffn_width=3072, max_positions=512, **{**COMMON, "activation": "relu"}
    )
    expected = {"token_types": 1, "head_transform": "gelu", "classifier_dropout": 0.3, "position_offset": 2, **EVERY}
    assert options_from_config(config) == ModelConfig(vocab_size=50265, width=768, encoder=stack, **expected)


def test_albert_xxlarge() -> None:
    stack = StackConfig(
        num_layers=12,
        num_heads=64,
        ffn_width=16384,
        norm_epsilon=1e-12,
        max_positions=512,
        shared_layers=(0,) * 12,
        **{**COMMON, "activation": "gelu_new", "dropout": 0.0, "attention_dropout": 0.0},
    )
    expected = {
        "token_types": 2,
        "head_transform": "gelu_new",
        "classifier_dropout": 0.1,
        "embedding_width": 128,
        **EVERY,
    }
    assert options_from_config(AlbertConfig()) == ModelConfig(vocab_size=30000, width=4096, encoder=stack, **expected)


@pytest.mark.parametrize(
    ("steps", "groups", "inner", "expected"),
    [
        (3, 1, 1, (0, 0, 0)),
        (4, 2, 1, (0, 0, 1, 1)),
        (5, 2, 1, (0, 0, 0, 1, 1)),
        (2, 2, 2, (0, 1, 2, 3)),
        (3, 1, 2, (0, 1, 0, 1, 0, 1)),
    ],
)
def test_groups_of_layers(steps: int, groups: int, inner: int, expected: tuple[int, ...]) -> None:
    config = AlbertConfig(num_hidden_layers=steps, num_hidden_groups=groups, inner_group_num=inner)
    assert options_from_config(config).encoder.shared_layers == expected
    assert len(layer_blocks(config)) == steps * inner


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("gelu_fast", "gelu_new"), ("gelu_pytorch_tanh", "gelu_new"), ("swish", "silu"), ("gelu_python", "gelu")],
)
def test_names_of_activations(theirs: str, ours: str) -> None:
    assert options_from_config(BertConfig(hidden_act=theirs)).encoder.activation == ours


def test_tied_or_not() -> None:
    assert options_from_config(BertConfig()).tied_embeddings == "all"
    assert options_from_config(BertConfig(tie_word_embeddings=False)).tied_embeddings == "none"


def problems_of(config: PreTrainedConfig) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as raised:
        options_from_config(config)
    assert raised.value.source == "config.json"
    return [(problem.option, problem.message) for problem in raised.value.problems]


def test_everything_that_cannot_be_represented() -> None:
    config = BertConfig(is_decoder=True, add_cross_attention=True, hidden_act="mish", pad_token_id=None)
    config.position_embedding_type = "relative_key_query"
    config.quantization_config = {"load_in_8bit": True}
    known = "relu, gelu, gelu_new, silu, tanh, gelu_python, gelu_fast, gelu_pytorch_tanh, swish"
    assert problems_of(config) == [
        ("is_decoder", "this is a decoder, which cannot be imported; give a plain encoder"),
        (
            "add_cross_attention",
            "this model attends to another sequence, which cannot be imported; give a plain encoder",
        ),
        ("quantization_config", "these weights are quantised, which cannot be imported; give a plain encoder"),
        (
            "position_embedding_type",
            "'relative_key_query' positions have no counterpart here; import a model with absolute ones",
        ),
        ("hidden_act", f"'mish' is none of the activations {known}; import a model with one"),
        ("pad_token_id", "every model needs the id of padding; give a number"),
    ]


@pytest.mark.parametrize("groups", [0, 4])
def test_groups_that_never_run(groups: int) -> None:
    expected = f"{groups} is not between 1 and num_hidden_layers 3; import a model that runs all its groups"
    config = AlbertConfig(num_hidden_layers=3, num_hidden_groups=groups)
    assert problems_of(config) == [("num_hidden_groups", expected)]


def test_options_that_contradict_each_other() -> None:
    ((option, message),) = problems_of(AlbertConfig(hidden_size=10, num_attention_heads=3))
    assert (option, message[:36]) == ("encoder.num_heads", "3 attention heads do not divide widt")


# Which model


@pytest.mark.parametrize(
    ("family", "name", "ours"),
    [
        ("bert", "BertModel", DepthwiseModel),
        ("bert", "BertForPreTraining", DepthwiseForMaskedLM),
        ("roberta", "RobertaForMaskedLM", DepthwiseForMaskedLM),
        ("albert", "AlbertForSequenceClassification", DepthwiseForSequenceClassification),
    ],
)
def test_architectures(family: str, name: str, ours: type) -> None:
    assert model_class({"model_type": family, "architectures": [name]}, bare=False) is ours
    assert (
        model_class({"model_type": family, "architectures": ["RobertaForMultipleChoice"]}, bare=True) is DepthwiseModel
    )


@pytest.mark.parametrize(
    ("named", "found"),
    [
        (["RobertaForCausalLM"], "names the architecture 'RobertaForCausalLM'"),
        (["RobertaForPreTraining"], "names the architecture 'RobertaForPreTraining'"),
        (["BertModel"], "names the architecture 'BertModel'"),
        ("BertModel", "names the architecture 'BertModel'"),
        ([{}], "names the architecture {}"),
        ([], "names no architecture"),
        (None, "names no architecture"),
    ],
)
def test_other_architectures(named: Any, found: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        model_class({"model_type": "roberta", "architectures": named}, bare=False)
    ends = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
    known = ", ".join(f"Roberta{end}" for end in ends)
    assert str(raised.value) == (
        f"config.json {found}; what can be imported is {known} or RobertaForQuestionAnswering, or the encoder alone "
        "with --bare"
    )


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        ({"model_type": "gpt2"}, "names the model_type 'gpt2'"),
        ({}, "names no model_type"),
        ({"model_type": []}, "names the model_type []"),
    ],
)
def test_other_families(raw: dict[str, Any], found: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        parse_config(raw)
    assert str(raised.value) == f"config.json {found}; what can be imported is bert, roberta or albert"


def test_a_configuration_with_a_wrong_type() -> None:
    with pytest.raises(
        CheckpointError, match=r"config\.json is not as Transformers writes it: .*hidden_size.*; correct it$"
    ):
        parse_config({"model_type": "bert", "hidden_size": "wide"})
