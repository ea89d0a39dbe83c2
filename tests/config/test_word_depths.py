"""Options of the depths of words: what may stand there, and what has no effect."""

from typing import Any

import pytest

from depthwise.config import WordDepthsConfig, as_dict, parse_model
from depthwise.errors import ConfigError

MODEL: dict[str, Any] = {"vocab_size": 10, "width": 8, "encoder": {"num_layers": 3, "num_heads": 2}}


def problems(**changes: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as raised:
        parse_model({**MODEL, **changes})
    return {problem.option: problem.message for problem in raised.value.problems}


def test_defaults_and_back() -> None:
    parsed = parse_model({**MODEL, "word_depths": {}})
    assert parsed.word_depths == WordDepthsConfig()
    assert parse_model(as_dict(parsed)) == parsed
    assert parse_model(MODEL).word_depths is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("estimator", "magic"),
        ("words", "letters"),
        ("bins", "depth"),
        ("unseen", "twice"),
        ("special", "most"),
        ("seed", -1),
        ("added_count", 0),
        ("added_count", float("inf")),
        ("floor", 0),
        ("range_quantile", 0.5),
        ("min_documents", 0),
        ("range_quantile", 0),
        ("deep", "rare"),
        ("least", 0),
        ("penalty", -0.1),
        ("copies", 0),
        ("predictor_width", 0),
        ("predictor_epochs", 0),
        ("matched", "letters"),
    ],
)
def test_values_by_themselves(option: str, value: object) -> None:
    estimator: dict[str, Any] = {"estimator": "random"} if option in ("seed", "matched") else {}
    if option in ("penalty", "copies"):
        estimator = {"estimator": "reconstruction", "run": "masked"}
    if option.startswith("predictor"):
        estimator = {"estimator": "reconstruction_predictor", "run": "masked"}
    assert f"word_depths.{option}" in problems(word_depths={**estimator, option: value})


@pytest.mark.parametrize(
    ("options", "broken"),
    [
        ({"estimator": "fixed"}, "depth"),
        ({"depth": 2}, "depth"),
        ({"estimator": "fixed", "depth": 4}, "depth"),
        ({"seed": 1}, "seed"),
        ({"least": 4}, "least"),
        ({"estimator": "fixed", "depth": 1, "least": 2}, "least"),
        ({"bins": "tokens", "mean_depth": 1.5, "least": 2}, "mean_depth"),
        ({"estimator": "frequency", "floor": 1e-6}, "floor"),
        ({"estimator": "frequency", "added_count": 1.0}, "added_count"),
        ({"estimator": "fixed", "depth": 1, "bins": "quantile"}, "bins"),
        ({"estimator": "fixed", "depth": 1, "unseen": "smoothed"}, "unseen"),
        ({"bins": "quantile", "range_quantile": 0.1}, "range_quantile"),
        ({"bins": "tokens", "range_quantile": 0.1}, "range_quantile"),
        ({"bins": "quantile", "mean_depth": 1.5}, "mean_depth"),
        ({"bins": "tokens", "mean_depth": 0.5}, "mean_depth"),
        ({"bins": "tokens", "mean_depth": 3.5}, "mean_depth"),
        ({"estimator": "frequency", "deep": "informative"}, "deep"),
        ({"estimator": "reconstruction"}, "run"),
        ({"estimator": "reconstruction_table"}, "run"),
        ({"estimator": "reconstruction_predictor"}, "run"),
        ({"estimator": "reconstruction_table", "run": "masked", "predictor_width": 8}, "predictor_width"),
        ({"predictor_epochs": 3}, "predictor_epochs"),
        ({"run": "masked"}, "run"),
        ({"penalty": 0.2}, "penalty"),
        ({"copies": 4}, "copies"),
        ({"matched": "words"}, "matched"),
        ({"estimator": "reconstruction", "run": "masked", "bins": "quantile"}, "bins"),
        ({"estimator": "reconstruction_table", "run": "masked", "floor": 1e-3}, "floor"),
    ],
)
def test_options_together(options: dict[str, Any], broken: str) -> None:
    assert set(problems(word_depths=options)) == {f"word_depths.{broken}"}


def test_they_are_of_an_encoder_alone_and_the_only_ones_to_decide() -> None:
    assert "stands alone" in problems(decoder={"num_layers": 2, "num_heads": 2}, word_depths={})["word_depths"]
    assert "before the model runs" in problems(exits={}, word_depths={})["word_depths"]
