"""From options to policies, and what does not go together."""

from typing import Any

import pytest

from depthwise.config import POLICIES, ConfidenceConfig, FixedDepthConfig, parse_policy
from depthwise.depth import (
    ConfidenceThreshold,
    FixedDepth,
    LearnedConfidence,
    Patience,
    PoissonBinomial,
    Policy,
    SequenceExit,
    StructureExit,
    TokenExit,
    UniformExit,
    build_policy,
)
from depthwise.errors import ConfigError

KINDS: list[tuple[dict[str, Any], type[Policy], dict[str, tuple[int, ...]]]] = [
    ({"kind": "fixed", "depth": 2}, FixedDepth, {}),
    ({"kind": "sequence"}, SequenceExit, {"classifier.weight": (3, 8), "classifier.bias": (3,)}),
    ({"kind": "token"}, TokenExit, {"classifier.weight": (3, 8), "classifier.bias": (3,)}),
    (
        {"kind": "poisson_binomial"},
        PoissonBinomial,
        {f"classifiers.{n}.{name}": shape for n in (0, 1) for name, shape in (("weight", (1, 8)), ("bias", (1,)))},
    ),
    (
        {"kind": "poisson_binomial", "shared": True},
        PoissonBinomial,
        {"classifiers.0.weight": (1, 8), "classifiers.0.bias": (1,)},
    ),
    ({"kind": "confidence", "threshold": [0.9, 0.8]}, ConfidenceThreshold, {}),
    ({"kind": "patience", "patience": 2}, Patience, {}),
    ({"kind": "structure"}, StructureExit, {}),
    ({"kind": "uniform", "seed": 2}, UniformExit, {}),
    ({"kind": "learned_confidence"}, LearnedConfidence, {"classifier.weight": (1, 8), "classifier.bias": (1,)}),
]


def test_all_kinds_are_here() -> None:
    assert {options["kind"] for options, _, _ in KINDS} == set(POLICIES)


@pytest.mark.parametrize(("options", "kind", "shapes"), KINDS)
def test_every_kind(options: dict[str, Any], kind: type[Policy], shapes: dict[str, tuple[int, ...]]) -> None:
    config = parse_policy(options)
    policy = build_policy(config, width=8, exits=(2, 4, 6))
    assert type(policy) is kind
    assert policy.options == config
    assert {name: tuple(tensor.shape) for name, tensor in policy.state_dict().items()} == shapes
    assert policy.needs_training == bool(shapes)


@pytest.mark.parametrize(
    ("options", "exits", "message"),
    [
        (
            FixedDepthConfig(depth=3),
            (2, 4),
            "policy fixed: 1 problem\n  depth  there is no exit at depth 3; choose among 2, 4",
        ),
        (
            ConfidenceConfig(threshold=(0.9, 0.8, 0.7)),
            (2, 4, 6),
            "policy confidence: 1 problem\n  threshold  3 thresholds for the 2 exits below the last; give one number "
            "for all or exactly 2",
        ),
    ],
)
def test_a_policy_that_does_not_fit_the_stack(options: Any, exits: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_policy(options, width=8, exits=exits)
    assert str(caught.value) == message


def test_a_model_without_a_source() -> None:
    with pytest.raises(ConfigError, match="kind  sequence guesses depth from the source, but this model has none; "):
        build_policy(parse_policy({"kind": "sequence"}), width=8, exits=(1, 2), has_source=False)
