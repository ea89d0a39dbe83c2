"""How many heads pruning left, as options of an encoder."""

from typing import Any

import pytest

from depthwise.config import parse_model
from depthwise.errors import ConfigError

STACK = {"num_layers": 4, "num_heads": 4}


def problems_of(side: str = "encoder", **stack: Any) -> list[str]:
    try:
        parse_model({"vocab_size": 9, "width": 16, side: {**STACK, **stack}})
    except ConfigError as error:
        return [f"{problem.option}: {problem.message}" for problem in error.problems]
    return []


def test_what_can_be() -> None:
    assert problems_of(kept_heads=2) == []
    assert problems_of(kept_heads=[1, 2, 3, 4]) == []
    assert problems_of(kept_heads=[1, 2], groups=2) == []
    assert problems_of(kept_heads=[1, 2, 4], shared_layers=[0, 1, 1, 2]) == []
    options = parse_model({"vocab_size": 9, "width": 16, "encoder": {**STACK, "kept_heads": [1, 2], "groups": 2}})
    assert options.encoder is not None
    assert [options.encoder.heads_of(layer) for layer in range(4)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("side", "stack", "told"),
    [
        ("encoder", {"kept_heads": [2, 0, 1, 1]}, "[2, 0, 1, 1] leaves a block no head; give at least 1 for each"),
        ("encoder", {"kept_heads": []}, "[] leaves a block no head; give at least 1 for each"),
        ("encoder", {"kept_heads": 5}, "5 are more than num_heads 4; lower it"),
        ("encoder", {"kept_heads": [1, 2]}, "2 numbers for 4 blocks; give one for all or one for each"),
        ("encoder", {"kept_heads": [1] * 4, "groups": 2}, "4 numbers for 2 blocks; give one for all or one for each"),
        ("decoder", {"kept_heads": 2}, "is for encoders, whose heads can be pruned; remove it"),
        (
            "encoder",
            {"kept_heads": 2, "mixer": "average"},
            "has no effect with mixer average, only with attention; remove it",
        ),
    ],
)
def test_what_cannot(side: str, stack: dict[str, Any], told: str) -> None:
    assert problems_of(side, **stack) == [f"{side}.kept_heads: {told}"]
