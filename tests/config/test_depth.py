"""Options of policies: every kind, every option, every mistake by its message."""

import json
from typing import Any

import pytest

from depthwise.config import (
    POLICIES,
    ConfidenceConfig,
    FixedDepthConfig,
    LearnedConfidenceConfig,
    PatienceConfig,
    PoissonBinomialConfig,
    PolicyConfig,
    SequenceExitConfig,
    TokenExitConfig,
    check_policy,
    parse_policy,
    placement_problems,
    policy_dict,
)
from depthwise.errors import ConfigError, Problem

NAN, INFINITY = float("nan"), float("inf")
VALID: dict[str, dict[str, Any]] = {
    "fixed": {"depth": 2},
    "sequence": {},
    "token": {},
    "poisson_binomial": {},
    "confidence": {"threshold": 0.9},
    "patience": {"patience": 3},
    "learned_confidence": {},
    "structure": {},
    "uniform": {},
}
"""The least that each kind has to be told."""
EVERYTHING: dict[str, list[dict[str, Any]]] = {
    "fixed": [{"depth": 6}],
    "sequence": [
        {"oracle": "correctness", "penalty": 0.5, "never_correct": "last", "detach_features": True},
        {"oracle": "likelihood", "penalty": 2},
    ],
    "token": [{"smoothing": 2.0, "penalty": 0.1, "never_correct": "last"}, {"oracle": "likelihood", "smoothing": 0}],
    "poisson_binomial": [
        {"shared": True, "decision": "step", "threshold": 1, "objective": "oracle", "smoothing": INFINITY},
        {"decision": "quantile", "threshold": 1.0, "objective": "expected_loss", "beta": 0.5, "prior": 0.1},
        {"decision": "sample", "detach_features": True},
    ],
    "confidence": [
        {"threshold": [0.9, 0], "measure": "max_probability"},
        {"threshold": 2, "measure": "margin", "decay": "code", "decay_rate": 2.5, "max_length": 30},
        {"threshold": [-0.3, 0, -7.5], "measure": "entropy"},
        {"threshold": 1.0, "measure": "normalized_entropy", "decay": "paper", "max_length": 1},
        {"threshold": [-1, 1, 1.5], "measure": "saturation"},
    ],
    "patience": [{"patience": 1, "tolerance": 0.5}, {"patience": 10**9}],
    "learned_confidence": [{"threshold": [0.3, 2]}, {"threshold": 0.5, "decay": "code", "max_length": 8}],
    "structure": [{"threshold": 0}, {"threshold": 1.0, "stops": "threshold"}, {"stops": "argmax"}],
    "uniform": [{"seed": 0}, {"seed": 2**31 - 1}],
}


def problems_of(kind: Any, **options: Any) -> list[tuple[str, str]]:
    """The (option, message) pairs of a policy with these options beside those that it needs."""
    try:
        parse_policy({"kind": kind, **VALID.get(str(kind), {}), **options})
    except ConfigError as error:
        return [(problem.option, problem.message) for problem in error.problems]
    return []


def test_all_kinds_are_here() -> None:
    assert set(VALID) == set(EVERYTHING) == set(POLICIES)
    assert all(config.kind == kind for kind, config in POLICIES.items())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kind": "fixed", "depth": 3}, FixedDepthConfig(depth=3)),
        ({"kind": "sequence", "oracle": "likelihood"}, SequenceExitConfig(oracle="likelihood")),
        ({"kind": "token", "smoothing": 2}, TokenExitConfig(smoothing=2)),
        ({"kind": "poisson_binomial", "shared": True}, PoissonBinomialConfig(shared=True)),
        ({"kind": "confidence", "threshold": 0.9}, ConfidenceConfig(threshold=(0.9,))),
        ({"kind": "confidence", "threshold": [0.9, 1]}, ConfidenceConfig(threshold=(0.9, 1))),
        ({"kind": "patience", "patience": 2e0}, PatienceConfig(patience=2)),
        ({"kind": "learned_confidence"}, LearnedConfidenceConfig(threshold=(0.5,))),
    ],
)
def test_a_mapping_becomes_options(options: dict[str, Any], expected: PolicyConfig) -> None:
    assert parse_policy(options) == expected
    assert check_policy(expected) == []


@pytest.mark.parametrize(("kind", "options"), [(kind, each) for kind, some in EVERYTHING.items() for each in some])
def test_options_that_are_fine(kind: str, options: dict[str, Any]) -> None:
    config = parse_policy({"kind": kind, **options})
    for name, value in options.items():
        assert getattr(config, name) in (value, (value,), tuple(value) if isinstance(value, list) else value)
    assert parse_policy(policy_dict(config)) == config


def test_options_go_through_json_with_their_kind() -> None:
    written = json.dumps(policy_dict(ConfidenceConfig(threshold=(0.9, 0.8))))
    assert written == (
        '{"kind": "confidence", "threshold": [0.9, 0.8], "decay": null, "decay_rate": 4.0, "max_length": null, '
        '"measure": "max_probability", "temperature": []}'
    )


def test_one_threshold_or_one_for_each_exit() -> None:
    assert [ConfidenceConfig(threshold=(0.7,)).threshold_of(index) for index in range(3)] == [0.7, 0.7, 0.7]
    assert [ConfidenceConfig(threshold=(0.7, 0.8, 0.9)).threshold_of(index) for index in range(3)] == [0.7, 0.8, 0.9]


# Kinds and names


@pytest.mark.parametrize("options", [None, 3, "confidence", ["kind"]])
def test_options_that_are_no_mapping(options: Any) -> None:
    with pytest.raises(ConfigError, match="policy  expected a mapping of policy options, got "):
        parse_policy(options)


def test_no_kind() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy({"threshold": 0.9})
    assert caught.value.problems == (
        Problem(
            "kind",
            "required but missing; give one of fixed, sequence, token, poisson_binomial, confidence, patience, "
            "learned_confidence, structure, uniform",
        ),
    )


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (3, "expected text, got 3"),
        (
            "poisson-binomal",
            '"poisson-binomal" is none of fixed, sequence, token, poisson_binomial, confidence, patience, '
            "learned_confidence, structure, uniform; did you mean poisson_binomial?",
        ),
    ],
)
def test_kinds_that_nobody_has(kind: Any, message: str) -> None:
    assert problems_of(kind) == [("kind", message)]


def test_unknown_options_get_the_nearest_name() -> None:
    assert problems_of("token", smothing=2.0) == [("smothing", "unknown option; did you mean smoothing?")]
    assert problems_of("fixed", threshold=0.5) == [("threshold", "unknown option; choose from depth")]


def test_a_misspelt_option_is_one_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy({"kind": "confidence", "treshold": 0.5})
    assert caught.value.problems == (Problem("treshold", "unknown option; did you mean threshold?"),)


@pytest.mark.parametrize(
    ("kind", "option", "message"),
    [
        ("fixed", "depth", "required but missing; give a whole number"),
        ("patience", "patience", "required but missing; give a whole number"),
        (
            "confidence",
            "threshold",
            "required but missing; give one number for all exits but the last, or one for each of them",
        ),
    ],
)
def test_missing_options(kind: str, option: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy({"kind": kind})
    assert caught.value.problems == (Problem(option, message),)


def test_all_problems_are_reported_under_the_name_of_the_source() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy({"kind": "confidence", "mesure": "margin", "threshold": 7, "max_length": 0}, source="run.yaml")
    assert str(caught.value).splitlines() == [
        "run.yaml: 2 problems",
        "  mesure      unknown option; did you mean measure?",
        "  max_length  0 is too small; give 1 or more",
    ]


# Values


@pytest.mark.parametrize(
    ("kind", "option", "value", "message"),
    [
        ("fixed", "depth", 0, "0 is too small; give 1 or more"),
        ("fixed", "depth", 1.5, "expected a whole number, got 1.5"),
        ("sequence", "oracle", "likely", '"likely" is none of correctness, likelihood; did you mean likelihood?'),
        ("sequence", "penalty", -0.1, "-0.1 is too small; give 0 or more"),
        ("sequence", "penalty", INFINITY, "inf is not finite; give a finite number"),
        ("token", "never_correct", "lsat", '"lsat" is none of first, last; did you mean last?'),
        ("token", "smoothing", -1, "-1 is too small; give 0 or more, or .inf for whole sequences"),
        ("token", "smoothing", NAN, "nan is too small; give 0 or more, or .inf for whole sequences"),
        ("token", "detach_features", "no", 'expected a boolean (true or false), got "no"'),
        ("poisson_binomial", "shared", 1, "expected a boolean (true or false), got 1"),
        ("poisson_binomial", "decision", "steps", '"steps" is none of step, quantile, sample; did you mean step?'),
        ("poisson_binomial", "objective", "loss", '"loss" is none of oracle, expected_loss; choose one of these'),
        ("poisson_binomial", "threshold", 1.5, "1.5 is out of range; give a number from 0 to 1"),
        ("poisson_binomial", "threshold", [0.5], "expected a number, got [0.5]"),
        ("poisson_binomial", "beta", -1, "-1 is too small; give 0 or more"),
        ("poisson_binomial", "prior", 1, "1 is out of range; give a number between 0 and 1"),
        ("poisson_binomial", "prior", 0.0, "0.0 is out of range; give a number between 0 and 1"),
        (
            "confidence",
            "measure",
            "margins",
            '"margins" is none of max_probability, margin, entropy, normalized_entropy, saturation; '
            "did you mean margin?",
        ),
        ("confidence", "threshold", "high", 'expected a list of numbers, got "high"'),
        (
            "confidence",
            "threshold",
            90,
            "90 is out of range of max_probability; give a number from 0 to 1, or 2 so that nobody leaves",
        ),
        (
            "confidence",
            "threshold",
            [0.5, -0.1],
            "-0.1 is out of range of max_probability; give a number from 0 to 1, or 2 so that nobody leaves",
        ),
        (
            "confidence",
            "threshold",
            NAN,
            "nan is out of range of max_probability; give a number from 0 to 1, or 2 so that nobody leaves",
        ),
        ("confidence", "decay", "codes", '"codes" is none of code, paper; did you mean code?'),
        ("confidence", "max_length", 0, "0 is too small; give 1 or more"),
        ("confidence", "decay_rate", -1, "-1 is too small; give 0 or more"),
        ("patience", "patience", 0, "0 is too small; give 1 or more"),
        ("patience", "tolerance", 0.0, "0.0 is too small; give a number above 0"),
        ("patience", "tolerance", INFINITY, "inf is not finite; give a finite number"),
        ("uniform", "seed", -1, "-1 is too small; give 0 or more"),
        ("uniform", "seed", 2**31, "2147483648 is too large; give a number below 2147483648"),
        (
            "learned_confidence",
            "threshold",
            2.5,
            "2.5 is out of range of learned_confidence; give a number from 0 to 1, or 2 so that nobody leaves",
        ),
        (
            "learned_confidence",
            "threshold",
            [],
            "required but missing; give one number for all exits but the last, or one for each of them",
        ),
    ],
)
def test_values_that_make_no_sense(kind: str, option: str, value: Any, message: str) -> None:
    assert problems_of(kind, **{option: value}) == [(option, message)]


@pytest.mark.parametrize(
    ("measure", "threshold", "message"),
    [
        ("margin", -0.5, "-0.5 is out of range of margin; give a number from 0 to 1, or 2 so that nobody leaves"),
        ("saturation", -2, "-2 is out of range of saturation; give a number from -1 to 1, or 2 so that nobody leaves"),
        (
            "entropy",
            0.3,
            "0.3 is out of range of entropy, which counts as −H; to leave below an entropy of 0.3, give -0.3",
        ),
        ("entropy", -INFINITY, "-inf is not finite; give a finite number"),
        ("entropy", NAN, "nan is not finite; give a finite number"),
    ],
)
def test_a_threshold_is_one_of_its_measure(measure: str, threshold: float, message: str) -> None:
    assert problems_of("confidence", measure=measure, threshold=threshold) == [("threshold", message)]


# Values together


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (
            "token",
            {"oracle": "likelihood", "never_correct": "last"},
            [("never_correct", "has no effect with oracle likelihood; remove it")],
        ),
        (
            "poisson_binomial",
            {"decision": "sample", "threshold": 0.4},
            [("threshold", "has no effect with decision sample; remove it")],
        ),
        (
            "poisson_binomial",
            {"decision": "quantile", "threshold": 0},
            [("threshold", "0 is reached before the first exit; give a quantile above 0")],
        ),
        (
            "poisson_binomial",
            {"beta": 1.0, "prior": 0.5},
            [
                ("beta", "has no effect with objective oracle; remove it"),
                ("prior", "has no effect with objective oracle; remove it"),
            ],
        ),
        (
            "poisson_binomial",
            {"objective": "expected_loss", "oracle": "likelihood", "penalty": 1.0, "smoothing": 1.0},
            [
                ("oracle", "has no effect with objective expected_loss; remove it"),
                ("penalty", "has no effect with objective expected_loss; remove it"),
                ("smoothing", "has no effect with objective expected_loss; remove it"),
            ],
        ),
        (
            "poisson_binomial",
            {"objective": "expected_loss", "never_correct": "last"},
            [("never_correct", "has no effect with objective expected_loss; remove it")],
        ),
        (
            "confidence",
            {"max_length": 20, "decay_rate": 1.0},
            [
                ("decay_rate", "has no effect without decay; remove it"),
                ("max_length", "has no effect without decay; remove it"),
            ],
        ),
        (
            "learned_confidence",
            {"decay": "code"},
            [("max_length", "required with decay; give the most tokens that a sequence may have")],
        ),
        (
            "confidence",
            {"decay": "code", "max_length": 9, "measure": "entropy", "threshold": -1},
            [("decay", "would make thresholds below 0 stricter along a sequence; remove it")],
        ),
    ],
)
def test_options_that_do_not_agree(kind: str, options: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert problems_of(kind, **options) == expected


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("confidence", {"measure": "margins", "threshold": 90}),
        ("confidence", {"decay": "codes", "max_length": 3}),
        ("poisson_binomial", {"decision": "steps", "threshold": 7}),
        ("token", {"oracle": "likely", "never_correct": "last"}),
    ],
)
def test_one_mistake_is_one_problem(kind: str, options: dict[str, Any]) -> None:
    assert len(problems_of(kind, **options)) == 1


def test_built_options_are_checked_too() -> None:
    assert [problem.option for problem in check_policy(ConfidenceConfig(measure="margin"))] == ["threshold"]
    assert [problem.option for problem in check_policy(PatienceConfig(patience=0))] == ["patience"]


# Exits at hand


def placed(config: PolicyConfig, *exits: int, **known: Any) -> list[tuple[str, str]]:
    return [(problem.option, problem.message) for problem in placement_problems(config, exits, **known)]


def test_a_fixed_depth_is_one_of_the_exits() -> None:
    assert placed(FixedDepthConfig(depth=4), 2, 4, 6) == []
    assert placed(FixedDepthConfig(depth=6), 6) == []
    message = "there is no exit at depth 3; choose among 2, 4, 6"
    assert placed(FixedDepthConfig(depth=3), 2, 4, 6) == [("depth", message)]


@pytest.mark.parametrize(
    "config", [ConfidenceConfig(threshold=(0.9, 0.8)), LearnedConfidenceConfig(threshold=(0.9, 0.8))]
)
def test_thresholds_are_as_many_as_exits_below_the_last(config: PolicyConfig) -> None:
    assert placed(config, 2, 4, 6) == []
    message = "2 thresholds for the 3 exits below the last; give one number for all or exactly 3"
    assert placed(config, 1, 2, 4, 6) == [("threshold", message)]
    assert placed(LearnedConfidenceConfig(), 1, 2, 4, 6) == []


def test_a_sequence_needs_a_source() -> None:
    message = (
        "sequence guesses depth from the source, but this model has none; choose token, poisson_binomial, "
        "confidence or patience"
    )
    assert placed(SequenceExitConfig(), 1, 2, has_source=False) == [("kind", message)]
    assert placed(SequenceExitConfig(), 1, 2) == placed(TokenExitConfig(), 1, 2, has_source=False) == []


def test_saturation_needs_two_exits_below_the_last() -> None:
    config = ConfidenceConfig(threshold=(0.9,), measure="saturation")
    message = "saturation compares two exits below the last, but there is one; add exits or choose another measure"
    assert placed(config, 1, 2) == [("measure", message)]
    assert placed(config, 1, 2, 3) == []


@pytest.mark.parametrize("kind", [kind for kind in POLICIES if kind not in ("fixed", "structure")])
def test_somebody_must_be_able_to_leave(kind: str) -> None:
    message = f"{kind} needs an exit before the last block; add exits, or remove the policy"
    assert placed(parse_policy({"kind": kind, **VALID[kind]}), 6) == [("kind", message)]
