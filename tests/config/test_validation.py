"""Names, types and ranges: every problem by its message, and all of them at once."""

from typing import Any

import pytest

from depthwise.config import (
    KERNEL_NORMALIZATIONS,
    MIXERS,
    AdaptiveConfig,
    ExitsConfig,
    ModelConfig,
    StackConfig,
    TokenExitConfig,
    as_dict,
    check_model,
    nearest,
    parse_model,
    policy_dict,
)
from depthwise.errors import ConfigError, Problem

LIGHT = {"mixer": "lightconv", "kernel_sizes": [3]}
ADAPTIVE = {"cutoffs": [20, 50], "factor": 2}


def problems_of(**options: Any) -> list[tuple[str, str]]:
    """The (option, message) pairs of a model with these options; 100 types unless told otherwise."""
    try:
        parse_model({"vocab_size": 100, **options})
    except ConfigError as error:
        return [(problem.option, problem.message) for problem in error.problems]
    return []


def encoder(**options: Any) -> list[tuple[str, str]]:
    return problems_of(encoder=options)


def decoder(**options: Any) -> list[tuple[str, str]]:
    return problems_of(decoder=options)


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("kernal_sizes", ("kernel_sizes", "kernel_heads"), "kernel_sizes"),
        ("LightConv", MIXERS, "lightconv"),
        ("abs-l1", KERNEL_NORMALIZATIONS, "abs_l1"),
        ("xyz", MIXERS, None),
        ("anything", (), None),
    ],
)
def test_nearest_name(name: str, known: tuple[str, ...], expected: str | None) -> None:
    assert nearest(name, known) == expected


# Parsing


def test_nested_dictionaries_become_configurations() -> None:
    config = parse_model(
        {
            "vocab_size": 10,
            "encoder": {"mixer": "dynamicconv", "kernel_sizes": 3},
            "decoder": {"kernel_sizes": [3, 4], "num_layers": 2, "dropout": 0},
            "exits": {},
            "policy": {"kind": "fixed", "depth": 1},
        }
    )
    assert config == ModelConfig(
        vocab_size=10,
        encoder=StackConfig(mixer="dynamicconv", kernel_sizes=(3,)),
        decoder=StackConfig(kernel_sizes=(3, 4), num_layers=2, dropout=0.0),
        exits=ExitsConfig(),
        policy={"kind": "fixed", "depth": 1},
    )


@pytest.mark.parametrize(
    ("changes", "option", "message"),
    [
        ({"exits": None}, "policy", "decides where tokens leave, but there are no exits; add exits, or remove it"),
        ({"policy": {"kind": "sequence"}}, "policy.kind", "guesses depth from the source, but this model has none"),
        ({"policy": {"kind": "fixed", "depth": 3}}, "policy.depth", "no exit at depth 3; choose among 1, 2, 4"),
        ({"policy": {"kind": "token", "penalty": -1}}, "policy.penalty", "-1 is too small"),
        ({"policy": {"kind": "tokens"}}, "policy.kind", "did you mean token?"),
        ({"policy": {}}, "policy.kind", "required but missing"),
        ({"exits": {"depths": [5]}}, "exits.depths", "the stack has 4 blocks"),
    ],
)
def test_a_policy_fits_itself_and_the_exits(changes: dict[str, Any], option: str, message: str) -> None:
    """Each mistake is reported once, and not where it only follows from another."""
    options = {"decoder": {"num_layers": 4}, "exits": {"depths": [1, 2]}, "policy": {"kind": "token"}, **changes}
    with pytest.raises(ConfigError) as caught:
        parse_model({"vocab_size": 10, **options})
    ((found, said),) = ((problem.option, problem.message) for problem in caught.value.problems)
    assert found == option
    assert message in said


def test_a_policy_gets_all_its_options_but_gates_stay_as_they_are() -> None:
    options = {"vocab_size": 10, "decoder": {"num_layers": 2}, "exits": {}}
    policy = parse_model({**options, "policy": {"kind": "token", "smoothing": 2.0}}).policy
    assert policy == policy_dict(TokenExitConfig(smoothing=2.0))
    gates = {"kind": "latent", "decoder_logits": [[1.0, 2.0]]}
    assert parse_model({**options, "exits": None, "policy": gates}).policy == gates


def test_a_policy_waits_for_what_is_undecided() -> None:
    options = {"vocab_size": 10, "decoder": {}, "policy": {"kind": "fixed", "depth": 9}}
    assert parse_model(options, undecided={"exits"}).policy == {"kind": "fixed", "depth": 9}
    assert parse_model({**options, "exits": {}}, undecided={"decoder.num_layers"}).exits == ExitsConfig()


def test_built_sections_are_accepted() -> None:
    stack, bands = StackConfig(num_layers=2), AdaptiveConfig(cutoffs=(5,))
    assert parse_model({"vocab_size": 10, "decoder": stack, "adaptive": bands}) == ModelConfig(
        vocab_size=10, decoder=stack, adaptive=bands
    )


def test_built_sections_are_checked_too() -> None:
    assert problems_of(encoder=StackConfig(num_heads=7))[0][0] == "encoder.num_heads"


def test_the_error_names_its_source_and_lists_every_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_model({"vocab_size": 0, "widht": 4, "encoder": {"mixer": "lightcnov"}}, source="small.yaml")
    assert str(caught.value).splitlines() == [
        "small.yaml: 3 problems",
        "  widht          unknown option; did you mean width?",
        "  vocab_size     0 is too small; give 1 or more",
        '  encoder.mixer  "lightcnov" is none of attention, lightconv, dynamicconv, cnn, depthwise, average; '
        "did you mean lightconv?",
    ]


def test_names_types_ranges_and_contradictions_are_reported_together() -> None:
    found = problems_of(
        vocab_size="many",
        encoder={"kernal_sizes": [3], "dropout": 1.5},
        decoder={"num_heads": 7, "glu": True, "positions": "learned", "max_positions": None},
        adaptive={},
    )
    assert [option for option, _ in found] == [
        "encoder.kernal_sizes",
        "adaptive.cutoffs",
        "vocab_size",
        "encoder.dropout",
        "adaptive",
        "decoder.num_heads",
        "decoder.glu",
        "decoder.max_positions",
    ]


@pytest.mark.parametrize("options", [None, 3, ["vocab_size"]])
def test_options_that_are_no_mapping(options: Any) -> None:
    with pytest.raises(ConfigError, match="model  expected a mapping of model options, got "):
        parse_model(options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"encoder": {"kernal_sizes": 3}},
            ("encoder.kernal_sizes", "unknown option; did you mean encoder.kernel_sizes?"),
        ),
        ({"encoder": {}, "poling": "first"}, ("poling", "unknown option; did you mean pooling?")),
        (
            {"encoder": {}, "num_heads": 4},
            ("num_heads", "unknown option; did you mean encoder.num_heads or decoder.num_heads?"),
        ),
        ({"encoder": {"width": 4}}, ("encoder.width", "unknown option; did you mean width?")),
        (
            {"decoder": {}, "adaptive": {"cutoffs": [5], "xyzzy": 1}},
            ("adaptive.xyzzy", "unknown option; choose from cutoffs, factor, tied_projections, dropout"),
        ),
        ({"encoder": {1: 2}}, ("encoder.1", "unknown option; choose from " + ", ".join(as_dict(StackConfig())))),
    ],
)
def test_unknown_options(options: dict[str, Any], expected: tuple[str, str]) -> None:
    assert problems_of(**options) == [expected]


def test_missing_options() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_model({"decoder": {}, "adaptive": {}})
    assert caught.value.problems == (
        Problem("adaptive.cutoffs", "required but missing; give a list of whole numbers"),
        Problem("vocab_size", "required but missing; give a whole number"),
    )


def test_a_misspelt_required_option_is_one_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_model({"vocab_sise": 10, "encoder": {}})
    assert caught.value.problems == (Problem("vocab_sise", "unknown option; did you mean vocab_size?"),)


def test_a_misspelt_option_hides_no_problem_of_the_right_one() -> None:
    assert [option for option, _ in encoder(mixer="average", kernal_sizes=3, kernel_sizes=0)] == [
        "encoder.kernal_sizes",
        "encoder.kernel_sizes",
    ]


@pytest.mark.parametrize(
    ("options", "option", "message"),
    [
        ({"width": "wide"}, "width", 'expected a whole number, got "wide"'),
        ({"width": True}, "width", "expected a whole number, got true"),
        ({"width": 8.5}, "width", "expected a whole number, got 8.5"),
        ({"width": None}, "width", "expected a whole number, got null"),
        ({"scale_embedding": 1}, "scale_embedding", "expected a boolean (true or false), got 1"),
        ({"source_vocab_size": "x"}, "source_vocab_size", 'expected a whole number or null, got "x"'),
        ({"policy": "exit"}, "policy", 'expected a mapping or null, got "exit"'),
        ({"encoder": 6}, "encoder", "expected a mapping of stack options or null, got 6"),
        ({"encoder": {"mixer": 3}}, "encoder.mixer", "expected text, got 3"),
        ({"encoder": {"dropout": "0.1"}}, "encoder.dropout", 'expected a number, got "0.1"'),
        ({"encoder": {"dropout": False}}, "encoder.dropout", "expected a number, got false"),
        (
            {"encoder": {"final_norm": "yes"}},
            "encoder.final_norm",
            'expected a boolean (true or false) or null, got "yes"',
        ),
        (
            {"encoder": {"kernel_sizes": [3, "7"]}},
            "encoder.kernel_sizes",
            'expected a list of whole numbers or null, got [3, "7"]',
        ),
        ({"adaptive": [4]}, "adaptive", "expected a mapping of adaptive options or null, got [4]"),
    ],
)
def test_wrong_types(options: dict[str, Any], option: str, message: str) -> None:
    assert problems_of(**{"encoder": {}, **options}) == [(option, message)]


def test_long_values_are_cut() -> None:
    (problem,) = problems_of(encoder={}, width="w" * 500)
    assert problem == ("width", 'expected a whole number, got "' + "w" * 56 + "...")


# Each option by itself


@pytest.mark.parametrize(
    ("section", "option", "value", "start"),
    [
        ("encoder", "mixer", "atention", '"atention" is none of attention, '),
        ("encoder", "kernel_normalization", "soft-max", '"soft-max" is none of none, softmax, '),
        ("encoder", "norm", "prenorm", '"prenorm" is none of pre, post, none'),
        ("encoder", "activation", "relu6", '"relu6" is none of relu, gelu, gelu_new, silu, tanh'),
        ("encoder", "positions", "sinusoid", '"sinusoid" is none of sinusoidal, learned, none'),
        ("encoder", "kernel_from", "layer-inputs", '"layer-inputs" is none of conv_input, layer_input'),
        ("", "tied_embeddings", "decoders", '"decoders" is none of all, decoder, none'),
        ("", "pooling", "max-mean-", '"max-mean-" is none of max_mean, first, first_tanh'),
        ("", "head_transform", "gelu-", '"gelu-" is none of relu, gelu, gelu_new, silu, tanh'),
    ],
)
def test_names_outside_the_list(section: str, option: str, value: str, start: str) -> None:
    found = encoder(**{option: value}) if section else problems_of(encoder={}, **{option: value})
    ((where, message),) = found
    assert where == f"{section}.{option}".removeprefix(".")
    assert message.startswith(start)
    assert "; did you mean " in message


def test_a_name_that_is_like_no_other() -> None:
    ((_, message),) = encoder(norm="xyzzy")
    assert message == '"xyzzy" is none of pre, post, none; choose one of these'


@pytest.mark.parametrize(
    "option", ["num_layers", "num_heads", "ffn_width", "kernel_heads", "conv_width", "max_positions"]
)
@pytest.mark.parametrize("value", [0, -3])
def test_counts_of_a_stack(option: str, value: int) -> None:
    assert encoder(**LIGHT, **{option: value}) == [(f"encoder.{option}", f"{value} is too small; give 1 or more")]


@pytest.mark.parametrize(
    ("option", "value", "least"),
    [
        *(("vocab_size", 0, 1), ("source_vocab_size", 0, 1), ("width", -1, 1), ("embedding_width", 0, 1)),
        *(("position_offset", -1, 0), ("token_types", -1, 0)),
    ],
)
def test_counts_of_a_model(option: str, value: int, least: int) -> None:
    found = problems_of(encoder={}, decoder={}, **{option: value})
    assert found == [(option, f"{value} is too small; give {least} or more")]


@pytest.mark.parametrize(
    "option", ["dropout", "attention_dropout", "activation_dropout", "input_dropout", "dropconnect"]
)
@pytest.mark.parametrize("value", [-0.1, 1.0, 1, float("nan"), float("inf")])
def test_probabilities(option: str, value: float) -> None:
    expected = f"{value} is not a probability; give a number from 0 up to, but not including, 1"
    assert encoder(**{option: value}) == [(f"encoder.{option}", expected)]


@pytest.mark.parametrize("value", [-0.1, 1])
def test_dropout_of_a_classifier(value: float) -> None:
    expected = f"{value} is not a probability; give a number from 0 up to, but not including, 1"
    assert problems_of(encoder={}, classifier_dropout=value) == [("classifier_dropout", expected)]


@pytest.mark.parametrize("value", [0, -1e-5, 1, float("nan")])
def test_epsilon_of_norms(value: float) -> None:
    expected = f"{value} is no small positive number; give one such as 1e-5"
    assert encoder(norm_epsilon=value) == [("encoder.norm_epsilon", expected)]
    assert encoder(norm_epsilon=1e-12) == []


@pytest.mark.parametrize(
    ("blocks", "layer", "most"), [([1], 0, 0), ([0, 2, 1], 1, 1), ([0, -1, 0], 1, 1), ([0, 0, 2], 2, 1)]
)
def test_shared_blocks_are_counted_in_order(blocks: list[int], layer: int, most: int) -> None:
    remedy = "count blocks from 0 in the order of their first use, such as [0, 0, 1, 1]"
    expected = f"block {blocks[layer]} in layer {layer} should be at most {most}; {remedy}"
    assert encoder(num_layers=3, shared_layers=blocks) == [("encoder.shared_layers", expected)]


@pytest.mark.parametrize("blocks", [0, [0], [0, 1, 0], [0, 1, 2], None])
def test_shared_blocks(blocks: Any) -> None:
    assert encoder(num_layers=3, shared_layers=blocks) == []


def test_kernel_sizes_below_one() -> None:
    assert decoder(num_layers=3, kernel_sizes=[3, 0, -1]) == [
        ("decoder.kernel_sizes", "0 in layer 1, -1 in layer 2 is too small; kernel sizes are 1 or more")
    ]


@pytest.mark.parametrize(
    ("adaptive", "option", "message"),
    [
        ({"cutoffs": []}, "cutoffs", "an adaptive softmax needs at least one cutoff; give one or remove adaptive"),
        (
            {"cutoffs": [20, 20]},
            "cutoffs",
            "[20, 20] does not increase from above 0; give the ends of the bands in rising order",
        ),
        (
            {"cutoffs": [0, 20]},
            "cutoffs",
            "[0, 20] does not increase from above 0; give the ends of the bands in rising order",
        ),
        ({"cutoffs": [20], "factor": 1}, "factor", "1 is too small; give 2 or more"),
        (
            {"cutoffs": [20], "dropout": 2},
            "dropout",
            "2 is not a probability; give a number from 0 up to, but not including, 1",
        ),
        (
            {"cutoffs": [20, 100]},
            "cutoffs",
            "the last cutoff 100 leaves nothing of vocab_size 100 for the last band; keep all cutoffs below the "
            "vocabulary size",
        ),
        (
            {"cutoffs": [20, 50], "factor": 3},
            "factor",
            "width 512 is not divisible by 3**2 = 9, which the last band needs; use a smaller factor, fewer cutoffs or "
            "a multiple of 9",
        ),
    ],
)
def test_adaptive_bands(adaptive: dict[str, Any], option: str, message: str) -> None:
    assert problems_of(decoder={}, adaptive=adaptive) == [(f"adaptive.{option}", message)]


# Consequences of a mistake are not reported beside it


@pytest.mark.parametrize(
    "options",
    [
        {"width": "wide", "encoder": {"num_heads": 7}},
        {"width": 0, "decoder": {}, "adaptive": ADAPTIVE},
        {"encoder": {"mixer": "lightcnov", "glu": True, "kernel_sizes": 4}},
        {"encoder": {"mixer": "lightconv", "kernal_sizes": 3}},
        {"encoder": {"mixer": "lightconv"}, "kernel_sizes": 3},
        {"encoder": {"num_layers": 0, "kernel_sizes": [3, 3]}},
        {"encodr": {"num_layers": 2}},
        {"encoder": 4, "decoder": {"mixer": "average", "num_heads": 7, "attention_dropout": 0.1}},
        {"encoder": {}, "decoder": {}, "vocab_size": -1, "source_vocab_size": 5},
    ],
)
def test_one_mistake_is_one_problem(options: dict[str, Any]) -> None:
    assert len(problems_of(**options)) == 1


# Built configurations


def test_check_model_agrees_with_parse_model() -> None:
    config = ModelConfig(vocab_size=100, encoder=StackConfig(num_heads=7, glu=True), tied_embeddings="decoder")
    with pytest.raises(ConfigError) as caught:
        parse_model(as_dict(config))
    assert tuple(check_model(config)) == caught.value.problems


def test_check_model_takes_lists_for_tuples_but_no_bare_number() -> None:
    good = ModelConfig(vocab_size=9, encoder=StackConfig(kernel_sizes=[3]))  # type: ignore[arg-type]
    bad = ModelConfig(vocab_size=9, encoder=StackConfig(kernel_sizes=3))  # type: ignore[arg-type]
    assert check_model(good) == []
    assert [problem.option for problem in check_model(bad)] == ["encoder.kernel_sizes"]
