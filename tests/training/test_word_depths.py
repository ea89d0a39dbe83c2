"""Training by depths of words: the same depths in training, validation and test, and after an interruption."""

import signal
from pathlib import Path
from typing import Any

import pytest

from depthwise.depth.word_table_file import FILE
from depthwise.errors import DataError
from depthwise.evaluation import evaluation_of, load_run, read_examples
from depthwise.tasks import TextClassification
from depthwise.training.run import train

from .conftest import WORDS, recipe_of
from .test_resume import assert_same_run, interrupted_at
from .test_trainer import metrics

LAYERS = 3


def with_depths(options: dict[str, Any], **words: Any) -> dict[str, Any]:
    encoder = {**options["model"]["encoder"], "num_layers": LAYERS, "dropout": 0.0, "dropconnect": 0.0}
    return {**options, "model": {**options["model"], "encoder": encoder, "word_depths": words}}


def test_words_that_name_the_class_are_shallow_and_enough(classification: dict[str, Any], tmp_path: Path) -> None:
    recipe = recipe_of(with_depths(classification), max_updates=60, validate_every=60, select="last")
    train(recipe, tmp_path / "run")
    run = load_run(tmp_path / "run", device="cpu")
    assert isinstance(run.task, TextClassification)
    depths = {word: run.task.word_table.depth_of(word) for word in WORDS}
    assert {depths[word] for word in WORDS[:3]} == {1}
    assert max(depths.values()) == LAYERS
    found = evaluation_of(run, "valid", read_examples(run.task, "valid"))
    assert found.value is not None
    assert found.value > 90
    validated = [entry["valid_accuracy"] for entry in metrics(tmp_path / "run") if "valid_accuracy" in entry]
    assert validated[-1] == pytest.approx(found.value)
    assert found.mean_depth is not None
    assert 1 < found.mean_depth < LAYERS


def test_a_run_goes_on_by_its_table(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = with_depths(classification, estimator="random", seed=3)
    recipe = recipe_of(options)
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupted_at(patch, 10, signal.SIGTERM)
        train(recipe, tmp_path / "parted")
    before = (tmp_path / "parted" / FILE).read_bytes()
    train(recipe, tmp_path / "parted")
    assert (tmp_path / "parted" / FILE).read_bytes() == before == (tmp_path / "whole" / FILE).read_bytes()
    assert_same_run(tmp_path / "whole", tmp_path / "parted")


def test_data_that_tells_nothing_is_said_to_be_so(classification: dict[str, Any], tmp_path: Path) -> None:
    """And not taken for a folder that cannot be written."""
    file = tmp_path / "one.tsv"
    file.write_text("x\tred\nx\tgreen\n")
    options = with_depths(classification)
    recipe = recipe_of({**options, "data": {**options["data"], "train": str(file)}})
    with pytest.raises(DataError, match='all documents have the label "x"; mutual information needs at least two'):
        train(recipe, tmp_path / "run")
