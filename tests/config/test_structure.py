"""Options of encoders that say how many layers they need, of distances and of groups: what goes together."""

import re
from dataclasses import replace
from typing import Any

import pytest

from depthwise.config import (
    ExitsConfig,
    ModelConfig,
    RelativeConfig,
    StackConfig,
    StructureConfig,
    StructureExitConfig,
    as_dict,
    parse_model,
    parse_policy,
    policy_dict,
)
from depthwise.errors import ConfigError


def problems_of(**options: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        parse_model({"vocab_size": 10, "encoder": {"norm": "pre"}, **options})
    return " ".join(str(raised.value).split())


def test_options_survive_a_round_trip() -> None:
    stack = StackConfig(num_layers=6, norm="pre", groups=2, relative=RelativeConfig(max_distance=5, indexing="literal"))
    structure = StructureConfig(num_static=2, summary="mean", allow_zero=True, last_bias=1)
    options = ModelConfig(vocab_size=10, encoder=stack, structure=structure)
    assert parse_model(as_dict(options)) == options


def test_depths_that_can_be_asked_for() -> None:
    options = ModelConfig(vocab_size=10, encoder=StackConfig(norm="pre"), structure=StructureConfig(num_static=4))
    assert (options.leaves_early, options.exit_depths) == (True, (4, 5, 6))
    plain = ModelConfig(vocab_size=10, encoder=StackConfig())
    assert (plain.leaves_early, plain.exit_depths) == (False, (6,))
    both = ModelConfig(
        vocab_size=10,
        encoder=StackConfig(norm="pre"),
        decoder=StackConfig(num_layers=3),
        structure=StructureConfig(num_static=1),
    )
    assert (both.leaves_early, both.exit_depths) == (False, (3,))
    assert (both.stopping_side, both.stopping_depths) == ("encoder", (1, 2, 3, 4, 5, 6))
    assert (options.stopping_side, options.stopping_depths) == ("encoder", (4, 5, 6))
    assert (plain.stopping_side, plain.stopping_depths) == (None, (6,))
    leaving = replace(both, exits=ExitsConfig())
    assert (leaving.stopping_side, leaving.stopping_depths) == ("decoder", (1, 2, 3))


@pytest.mark.parametrize(
    ("num_layers", "groups", "blocks"),
    [(6, 3, [0, 0, 1, 1, 2, 2]), (5, 2, [0, 0, 0, 1, 1]), (4, 4, [0, 1, 2, 3]), (3, 1, [0, 0, 0])],
)
def test_groups_of_neighbouring_layers(num_layers: int, groups: int, blocks: list[int]) -> None:
    stack = StackConfig(num_layers=num_layers, groups=groups)
    assert [stack.block_of(layer) for layer in range(num_layers)] == blocks
    assert stack.num_blocks == groups
    assert stack.has_shared_layers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structure": {}}, "structure.num_static required but missing"),
        ({"structure": {"num_static": 0}}, "structure.num_static 0 is too small"),
        ({"structure": {"num_static": 6}}, "structure.num_static 6 leaves none of 6 layers to decide about"),
        ({"structure": {"num_static": 5}}, "structure.num_static 5 leaves one of 6 layers, which then always runs"),
        (
            {"structure": {"num_static": 1, "summary": "last"}},
            "structure.summary.*none of first, first_tanh, mean, max",
        ),
        ({"structure": {"num_static": 1, "temperature": 0}}, "structure.temperature 0 is too small"),
        ({"structure": {"num_static": 1}, "encoder": {"norm": "post"}}, 'encoder.norm is "post".*use "pre" or "none"'),
        ({"structure": {"num_static": 1}, "encoder": None, "decoder": {}}, "structure is that of an encoder"),
        (
            {"structure": {"num_static": 1}, "encoder": {"norm": "pre", "connections": "dense"}},
            "encoder.connections dense wants all layers to run, and structure skips some",
        ),
        ({"structure": {"num_static": 1}, "exits": {}}, "structure does not go with exits"),
        ({"structure": {"num_static": 1}, "latent": {"sides": ["encoder"]}}, "does not go with latent layers"),
        ({"structure": {"num_static": 1}, "word_depths": {}}, "structure does not go with word_depths"),
        (
            {"structure": {"num_static": 1, "cumulative": False}, "policy": {"kind": "structure", "threshold": 0.3}},
            "policy.threshold has no effect: the likeliest number decides without cumulative",
        ),
        ({"policy": {"kind": "structure"}}, "policy structure needs layers that ask for others"),
        (
            {"structure": {"num_static": 1}, "policy": {"kind": "patience", "patience": 1}},
            "policy patience does not go with structure; use structure or fixed",
        ),
        (
            {"structure": {"num_static": 3}, "policy": {"kind": "fixed", "depth": 2}},
            "policy.depth there is no exit at depth 2; choose among 3, 4, 5, 6",
        ),
        (
            {"structure": {"num_static": 1}, "decoder": {}, "policy": {"kind": "patience", "patience": 1}},
            "policy patience does not go with structure; use structure or fixed",
        ),
        (
            {"structure": {"num_static": 3}, "decoder": {}, "policy": {"kind": "fixed", "depth": 2}},
            "policy.depth there is no exit at depth 2; choose among 3, 4, 5, 6",
        ),
        (
            {"structure": {"num_static": 1}, "decoder": {}, "exits": {}, "policy": {"kind": "structure"}},
            "policy is about the exits of the decoder where there are any; choose another kind",
        ),
        ({"encoder": {"groups": 7}}, "encoder.groups 7 blocks are more than the 6 layers"),
        ({"encoder": {"groups": 2, "shared_layers": 0}}, "encoder.groups and shared_layers both say"),
        (
            {"encoder": {"groups": 2, "mixer": "lightconv", "kernel_sizes": [3, 3, 3, 5, 5, 5]}},
            "encoder.groups share kernels too; give one kernel size",
        ),
        ({"encoder": {"relative": {"max_distance": 0}}}, "encoder.relative.max_distance 0 is too small"),
        ({"encoder": {"relative": {"indexing": "mine"}}}, "encoder.relative.indexing.*none of deberta, literal"),
        (
            {"encoder": {"relative": {}, "mixer": "average"}},
            "encoder.relative has no effect with mixer average, only with attention",
        ),
        ({"encoder": None, "decoder": {"relative": {}}}, "decoder.relative is for encoders"),
        (
            {"encoder": {"relative": {"content_to_position": False, "position_to_content": False}}},
            "position_to_content is off and so is content_to_position",
        ),
        (
            {"encoder": {"relative": {"position_to_content": False, "indexing": "literal"}}},
            "indexing has no effect without position_to_content",
        ),
    ],
)
def test_what_cannot_be(options: dict[str, Any], message: str) -> None:
    text = problems_of(**options)
    assert re.search(message, text), text


@pytest.mark.parametrize("kind", [{"kind": "structure", "threshold": 0.3}, {"kind": "fixed", "depth": 4}])
def test_policies_that_go_with_it(kind: dict[str, Any]) -> None:
    options = {"vocab_size": 10, "encoder": {"norm": "pre"}, "structure": {"num_static": 2}, "policy": kind}
    policy = parse_model(options).policy
    assert policy is not None
    assert policy.items() >= kind.items()


def test_terms_of_a_score() -> None:
    assert RelativeConfig().num_terms == 3
    assert RelativeConfig(position_to_content=False).num_terms == 2


def test_options_of_the_policy() -> None:
    assert parse_policy({"kind": "structure"}) == StructureExitConfig(threshold=0.7)
    assert parse_policy(policy_dict(StructureExitConfig(stops="argmax"))) == StructureExitConfig(stops="argmax")
    for given, message in (
        ({"threshold": 1.5}, "threshold 1.5 is out of range"),
        ({"stops": "never"}, "stops.*none of threshold, argmax"),
        ({"stops": "argmax", "threshold": 0.2}, "threshold has no effect where the likeliest number decides"),
    ):
        with pytest.raises(ConfigError) as raised:
            parse_policy({"kind": "structure", **given})
        assert re.search(message, " ".join(str(raised.value).split()))


def test_thresholds_of_single_chances_are_for_who_asks() -> None:
    for policy in ({}, {"threshold": 0.3, "stops": "threshold"}, {"stops": "argmax"}):
        options = {"structure": {"num_static": 1, "cumulative": False}, "policy": {"kind": "structure", **policy}}
        parse_model({"vocab_size": 10, "encoder": {"norm": "pre"}, **options})


def test_one_layer_may_be_decided_about_where_none_may_do() -> None:
    parse_model({"vocab_size": 10, "encoder": {"norm": "pre"}, "structure": {"num_static": 5, "allow_zero": True}})
