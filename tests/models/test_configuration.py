"""The configuration class: everything wrong at once, everything resolved, and the model that a head needs."""

import json
from typing import Any

import pytest
from transformers import PreTrainedModel

from depthwise.config import ConfidenceConfig, as_dict, policy_dict, preset
from depthwise.errors import ConfigError
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.models.question_answering import DepthwiseForQuestionAnswering
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.models.sequence_classification import DepthwiseForSequenceClassification
from depthwise.models.token_classification import DepthwiseForTokenClassification

STACK = {"num_layers": 2, "num_heads": 2, "ffn_width": 12}
SIDES: dict[str, dict[str, Any]] = {
    "encoder": {"encoder": STACK},
    "decoder": {"decoder": STACK},
    "decoder and encoder": {"encoder": STACK, "decoder": STACK},
}
NEEDS: dict[type[PreTrainedModel], str] = {
    DepthwiseForSeq2SeqLM: "encoder and decoder",
    DepthwiseForCausalLM: "decoder",
    DepthwiseForMaskedLM: "encoder",
    DepthwiseForSequenceClassification: "encoder",
    DepthwiseForTokenClassification: "encoder",
    DepthwiseForQuestionAnswering: "encoder",
}


def problems_of(**options: Any) -> list[tuple[str, str]]:
    """The (option, message) pairs of a configuration with these options; 17 types, unless told otherwise."""
    try:
        DepthwiseConfig(**{"vocab_size": 17, "width": 8, "encoder": STACK, **options})
    except ConfigError as error:
        return [(problem.option, problem.message) for problem in error.problems]
    return []


# Unknown and wrong options


@pytest.mark.parametrize(
    ("name", "guess"), [("widht", "width"), ("vocabsize", "vocab_size"), ("pad_token", "pad_token_id")]
)
def test_unknown_options_suggest_the_nearest(name: str, guess: str) -> None:
    assert problems_of(**{name: 3}) == [(name, f"unknown option; did you mean {guess}?")]


def test_options_of_a_stack_on_the_outside() -> None:
    expected = [("kernel_sizes", "unknown option; options of a stack go into encoder={...} or decoder={...}")]
    assert problems_of(kernel_sizes=[3]) == expected


def test_all_problems_at_once() -> None:
    found = problems_of(
        widht=3, width=9, eos_token_id=50, pooling="maxmean", encoder={**STACK, "mixer": "lightcov", "norm": "Pre"}
    )
    assert [option for option, _ in found] == ["widht", "eos_token_id", "encoder.mixer", "encoder.norm", "pooling"]
    messages = dict(found)
    assert "did you mean max_mean?" in messages["pooling"]
    assert "did you mean lightconv?" in messages["encoder.mixer"]


def test_the_message_lists_every_problem() -> None:
    with pytest.raises(ConfigError) as raised:
        DepthwiseConfig(vocab_size=17, width=8, encoder=STACK, widht=3, eos_token_id=50)
    assert str(raised.value).splitlines() == [
        "DepthwiseConfig: 2 problems",
        "  widht         unknown option; did you mean width?",
        "  eos_token_id  50 is outside the vocabulary of 17 types",
    ]


def test_contradictions_between_options() -> None:
    assert problems_of(encoder={**STACK, "num_heads": 3}) == [
        ("encoder.num_heads", "3 attention heads do not divide width 8; use one of 1, 2, 4, 8")
    ]
    even = {**STACK, "mixer": "lightconv", "kernel_sizes": [4]}
    ((option, message),) = problems_of(encoder=even)
    assert option == "encoder.kernel_sizes"
    assert "even kernels have no centre; use 3 or 5" in message


def test_nothing_to_build() -> None:
    assert problems_of(encoder=None)[0][0] == "encoder"
    assert problems_of(vocab_size=None) == [("vocab_size", "required but missing; give a whole number")]


def test_a_number_of_layers_beside_the_stacks() -> None:
    """Transformers' name for it is read only: a second place to say how deep a model is could contradict the first."""
    assert [option for option, _ in problems_of(num_hidden_layers=1)] == ["num_hidden_layers"]
    assert problems_of(num_hidden_layers=2) == []


# Special tokens


@pytest.mark.parametrize("name", ["bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"])
@pytest.mark.parametrize("value", [17, -1])
def test_special_ids_outside_the_vocabulary(name: str, value: int) -> None:
    assert problems_of(**{name: value}) == [(name, f"{value} is outside the vocabulary of 17 types")]


@pytest.mark.parametrize("name", ["bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"])
def test_special_ids_that_are_missing(name: str) -> None:
    """An encoder alone neither begins nor ends anything."""
    expected = [(name, "every model needs this id; give a number instead of None")]
    assert problems_of(**{name: None}) == (expected if name == "pad_token_id" else [])
    for side in ({"encoder": None, "decoder": STACK}, {"encoder": STACK, "decoder": STACK}):
        assert problems_of(**side, **{name: None}) == expected


def test_the_smaller_vocabulary_must_hold_special_ids() -> None:
    sides = {"encoder": STACK, "decoder": STACK, "tied_embeddings": "none"}
    assert problems_of(**sides, source_vocab_size=10, eos_token_id=12) == [
        ("eos_token_id", "12 is outside the vocabulary of 10 types")
    ]


def test_padding_is_not_the_end() -> None:
    assert problems_of(pad_token_id=2) == [("pad_token_id", "2 is also eos_token_id; give padding its own id")]
    assert len(problems_of(pad_token_id=None, eos_token_id=None)) == 1
    assert problems_of(pad_token_id=0) == []


# Heads


@pytest.mark.parametrize("model_class", NEEDS, ids=lambda model_class: model_class.__name__)
@pytest.mark.parametrize("given", SIDES)
def test_stacks_that_a_head_does_not_have(model_class: type[PreTrainedModel], given: str) -> None:
    config, name, needs = (
        DepthwiseConfig(vocab_size=17, width=8, **SIDES[given]),
        model_class.__name__,
        NEEDS[model_class],
    )
    if set(given.split(" and ")) == set(needs.split(" and ")):
        model_class(config)
        return
    with pytest.raises(ConfigError) as raised:
        model_class(config)
    assert raised.value.source == name
    wrong = sorted(set(given.split(" and ")) ^ set(needs.split(" and ")))
    message = f"{name} is made of {needs}; the configuration has {given}"
    assert [(problem.option, problem.message) for problem in raised.value.problems] == [
        (side, message) for side in wrong
    ]


# What a configuration holds


def test_everything_is_resolved() -> None:
    config = DepthwiseConfig(vocab_size=17, width=8, encoder=STACK)
    assert config.encoder == as_dict(config.options.encoder)
    assert len(config.encoder) > len(STACK)
    json.dumps(config.to_dict())


@pytest.mark.parametrize("name", ["iwslt-dynamicconv", "wmt-en-de-lightconv", "gbw-transformer", "table3-average-both"])
def test_presets_come_and_go(name: str) -> None:
    config = DepthwiseConfig.from_preset(name)
    assert config.options == preset(name)
    assert DepthwiseConfig.from_options(preset(name)).to_dict() == config.to_dict()
    assert DepthwiseConfig(**json.loads(json.dumps(config.to_dict()))).options == preset(name)


def test_a_preset_with_changes() -> None:
    config = DepthwiseConfig.from_preset("iwslt-dynamicconv", vocab_size=99, num_labels=7, pad_token_id=5)
    assert (config.vocab_size, config.num_labels, config.pad_token_id) == (99, 7, 5)
    with pytest.raises(ConfigError, match="did you mean iwslt-dynamicconv"):
        DepthwiseConfig.from_preset("iwslt-dynamic-conv")


def test_a_stack_of_a_preset_with_changes() -> None:
    config = DepthwiseConfig.from_preset("iwslt-dynamicconv", decoder={**STACK, "num_layers": 1})
    assert config.decoder["num_layers"] == 1
    assert config.encoder["num_layers"] == 7


@pytest.mark.parametrize(("given", "both"), [("encoder", False), ("decoder", False), ("decoder and encoder", True)])
def test_what_transformers_asks_for(given: str, both: bool) -> None:
    config = DepthwiseConfig(vocab_size=17, width=8, **SIDES[given])
    assert config.is_encoder_decoder == both
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (8, 2, 2)
    assert config.get_text_config() is config


@pytest.mark.parametrize(("tied", "expected"), [("all", True), ("decoder", True), ("none", False)])
def test_tied_embeddings_decide_for_transformers(tied: str, expected: bool) -> None:
    config = DepthwiseConfig(
        vocab_size=17, width=8, decoder=STACK, tied_embeddings=tied, tie_word_embeddings=not expected
    )
    assert config.tie_word_embeddings == expected


def test_options_of_transformers_are_known() -> None:
    config = DepthwiseConfig(
        vocab_size=17,
        width=8,
        encoder=STACK,
        id2label={0: "no", 1: "yes"},
        label2id={"no": 0, "yes": 1},
        dtype="float32",
    )
    assert config.num_labels == 2
    assert problems_of(problem_type="regression", num_labels=1, max_length=5, return_dict=True) == []


def test_keys_of_a_later_transformers_are_let_through() -> None:
    assert problems_of(transformers_version="99.0.0", invented_later=1) == []
    assert problems_of(transformers_version="5.0.0", invented_later=1)[0][0] == "invented_later"


def test_a_policy_is_kept_with_all_its_options() -> None:
    policy = {"kind": "confidence", "threshold": 0.9}
    config = DepthwiseConfig(vocab_size=17, width=8, encoder=STACK, exits={}, policy=policy)
    whole = policy_dict(ConfidenceConfig(threshold=(0.9,)))
    assert config.policy == whole
    assert config.to_dict()["policy"] == whole
    assert config.options.policy == whole


def test_configurations_without_arguments_are_refused_by_name() -> None:
    """Transformers makes one for its own book-keeping; a user is told what is missing."""
    with pytest.raises(ConfigError, match="vocab_size"):
        DepthwiseConfig()
