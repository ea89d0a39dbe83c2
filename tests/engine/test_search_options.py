"""Options of a search, from what is given and from a generation config that may change."""

import pytest
from transformers import GenerationConfig

from depthwise.engine import search_options
from depthwise.engine.search_options import SearchOptions, options_set_in


def test_changes_of_a_config_are_seen() -> None:
    """What was said of a config is remembered only as long as it stays as it was, lists within it included."""
    config = GenerationConfig(max_length=9, suppress_tokens=[3])
    assert SearchOptions.of(config, {}).max_length == 9
    config.max_length = 7
    assert SearchOptions.of(config, {}).max_length == 7
    assert config.suppress_tokens is not None
    config.suppress_tokens.append(4)
    assert SearchOptions.of(config, {}).suppress_tokens == [3, 4]


def test_zero_is_said_and_false_is_not() -> None:
    found = options_set_in(GenerationConfig(top_k=0, do_sample=False))
    assert found["top_k"] == 0
    assert "do_sample" not in found


def test_what_is_given_does_not_stay() -> None:
    config = GenerationConfig(max_length=9)
    options_set_in(config)["max_length"] = 1
    assert SearchOptions.of(config, {"max_length": 5}).max_length == 5
    assert SearchOptions.of(config, {}).max_length == 9


def test_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_options, "MOST_SEEN", 2)
    monkeypatch.setattr(search_options, "_seen", {})
    configs = [GenerationConfig(max_length=length) for length in range(5, 10)]
    for _ in range(2):
        assert [options_set_in(config)["max_length"] for config in configs] == [5, 6, 7, 8, 9]
        assert len(search_options._seen) <= 2
