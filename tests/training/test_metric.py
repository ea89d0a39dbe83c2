"""The metric that judges a training: it is known, and models in shards can find it."""

from pathlib import Path
from typing import Any

import pytest

from depthwise.errors import ConfigError
from depthwise.tasks import open_task
from depthwise.training.run import check_metric

from .conftest import recipe_of
from .test_encoder_tasks import TRAINING, write_questions, write_tagged
from .test_sequence_to_sequence import multilingual

__all__ = ["multilingual"]


@pytest.fixture
def options(
    request: pytest.FixtureRequest,
    classification: dict[str, Any],
    translation: dict[str, Any],
    multilingual: dict[str, Any],
    tmp_path: Path,
) -> dict[str, Any]:
    """A recipe of a task: ``request.param`` is its kind."""
    by_kind = {found["task"]: found for found in (classification, translation, multilingual)}
    if request.param in by_kind:
        return by_kind[request.param]
    path = tmp_path / "data"
    write = {"tagging": write_tagged, "question_answering": write_questions}[request.param]
    write(path, 30, 0)
    data = {**dict.fromkeys(("train", "valid", "test"), str(path)), "cache": str(tmp_path / "cache")}
    if request.param == "question_answering":
        data |= {"unanswerable": True, "max_tokens": 24, "stride": 4}
    return {"task": request.param, "data": data, "model": classification["model"], "training": TRAINING}


@pytest.mark.parametrize(
    ("options", "metric", "is_of_text"),
    [
        ("text_classification", None, False),
        ("tagging", None, False),
        ("question_answering", None, False),
        ("translation", None, False),
        ("translation", "nll", False),
        ("translation", "sacrebleu", True),
        ("multilingual_translation", None, False),
        ("multilingual_translation", "nll/mean", False),
        ("multilingual_translation", "sacrebleu", True),
    ],
    indirect=["options"],
)
def test_models_in_shards_write_no_text(
    options: dict[str, Any], metric: str | None, is_of_text: bool, tmp_path: Path
) -> None:
    check_metric(open_task(recipe_of(options, metric=metric), tmp_path / "whole"))
    task = open_task(recipe_of(options, metric=metric, shard=True), tmp_path / "sharded")
    if not is_of_text:
        check_metric(task)
        return
    with pytest.raises(ConfigError, match=rf"training\.metric +{metric} is of text, .*set it to nll"):
        check_metric(task)


@pytest.mark.parametrize("options", ["multilingual_translation"], indirect=True)
def test_pairs_have_a_metric_of_their_own(options: dict[str, Any], tmp_path: Path) -> None:
    pairs = [str(pair) for pair in options["data"]["pairs"]]
    check_metric(open_task(recipe_of(options, metric=f"nll/{pairs[0]}"), tmp_path / "known"))
    with pytest.raises(ConfigError, match=r'training\.metric +"nll/xx-xx" is none of .*nll/mean'):
        check_metric(open_task(recipe_of(options, metric="nll/xx-xx"), tmp_path / "unknown"))
