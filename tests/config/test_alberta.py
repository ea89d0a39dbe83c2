"""Presets of ALBERTa: sizes of ALBERT, layers by the poster's speeds."""

import pytest

from depthwise.config import as_dict, parse_model, preset, preset_names

NAMES = [name for name in preset_names() if name.startswith("alberta-")]


def test_four_sizes() -> None:
    assert NAMES == ["alberta-base", "alberta-large", "alberta-xlarge", "alberta-xxlarge"]


@pytest.mark.parametrize("name", NAMES)
def test_all_layers_cost_what_the_poster_says(name: str) -> None:
    """0.28 of the speed of twelve layers where all run, and 1.98 of it where as few as possible do."""
    options = preset(name)
    assert parse_model(as_dict(options), source=name) == options
    assert options.encoder is not None
    assert options.structure is not None
    assert round(12 / options.encoder.num_layers, 2) == 0.28
    assert round(12 / (options.structure.num_static + 1), 1) == 2.0
    assert options.encoder.num_blocks == 3
    assert options.encoder.norm == "pre"
