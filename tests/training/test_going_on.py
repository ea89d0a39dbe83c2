"""Odd moments to stop at, and what may differ when a run goes on."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from transformers import AutoTokenizer

from depthwise.config import load_recipe, parse_recipe, recipe_yaml
from depthwise.errors import CheckpointError, ConfigError, TrainingError
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.training import finishing, run
from depthwise.training.checkpoints import checkpoints, update_of
from depthwise.training.run import train

from .conftest import recipe_of
from .test_resume import MIDDLE, assert_same_run, interrupted_at


def test_a_run_whose_sizes_the_data_decided_goes_on(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {"optimizer": {"kind": "adamw"}, "max_updates": 20, "log_every": 4, "validate_every": 10}
    open_sizes = {"task": "text_classification", "data": classification["data"], "training": training}
    recipe = parse_recipe({**open_sizes, "model": {"size": "auto", "width": 16}})
    train(recipe, tmp_path / "whole")
    decided = load_recipe(tmp_path / "whole" / "recipe.yaml")
    assert decided.training.optimizer["lr"] > 0
    with monkeypatch.context() as patch:
        interrupted_at(patch, MIDDLE, signal.SIGINT)
        train(recipe, tmp_path / "parts")
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    assert train(recipe, tmp_path / "parts").was_finished
    assert load_recipe(tmp_path / "parts" / "recipe.yaml") == decided


def test_a_prolonged_run_that_is_killed_before_its_model_is_written(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(recipe_of(classification, max_updates=4), tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(run, "write_model", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(recipe_of(classification, max_updates=8), tmp_path / "run")
    done = train(recipe_of(classification, max_updates=8), tmp_path / "run")
    assert (done.num_updates, done.was_finished) == (8, False)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() != before


def test_killed_between_two_tokenizers(translation: dict[str, Any], tmp_path: Path) -> None:
    tied = {**translation["model"], "tied_embeddings": "decoder"}
    options = {**translation, "tokenizer": {"vocab_size": 80, "joint": False}, "model": tied}
    train(recipe_of(options, max_updates=2), tmp_path / "whole")
    (tmp_path / "killed").mkdir()
    for name in ("recipe.given.yaml", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "whole" / name, tmp_path / "killed")
    (tmp_path / "killed" / "tokenizer.json").write_text("{")
    train(recipe_of(options, max_updates=2), tmp_path / "killed")
    assert_same_run(tmp_path / "killed", tmp_path / "whole")
    source, target = (AutoTokenizer.from_pretrained(tmp_path / "killed" / place) for place in (".", "target"))
    assert source.get_vocab() != target.get_vocab()


def test_options_that_may_change_do_change(classification: dict[str, Any], tmp_path: Path) -> None:
    options = {"max_updates": 8, "validate_every": 2, "average": 3}
    train(recipe_of(classification, **options), tmp_path / "run")
    again = replace(
        recipe_of(classification, **{**options, "average": 2}),
        evaluation=replace(recipe_of(classification).evaluation, batch_tokens=77),
    )
    assert not train(again, tmp_path / "run").was_finished
    assert json.loads((tmp_path / "run" / "training.json").read_text())["averaged"] == [6, 8]
    assert load_recipe(tmp_path / "run" / "recipe.yaml").evaluation.batch_tokens == 77
    tuned = load_recipe(tmp_path / "run" / "recipe.yaml")
    tuned = replace(tuned, generation=replace(tuned.generation, length_penalty=0.5))
    (tmp_path / "run" / "recipe.yaml").write_text(recipe_yaml(tuned))
    train(again, tmp_path / "run")
    assert load_recipe(tmp_path / "run" / "recipe.yaml").generation.length_penalty == 0.5  # as it was tuned


@pytest.mark.parametrize("has_validation", [True, False])
def test_a_training_that_diverged_is_never_called_trained(
    classification: dict[str, Any], tmp_path: Path, has_validation: bool
) -> None:
    data = classification["data"] if has_validation else {**classification["data"], "valid": None}
    wild = {"optimizer": {"kind": "nesterov", "lr": 1e30}, "schedule": {"kind": "constant"}, "log_every": 100}
    with pytest.raises(TrainingError, match="no number any more at update 5"):
        train(recipe_of({**classification, "data": data}, **wild, max_updates=5), tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert not checkpoints(tmp_path / "run")


def test_damaged_checkpoints_do_not_crowd_out_good_ones(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(classification, save_every=2, max_updates=20)
    with monkeypatch.context() as patch:
        interrupted_at(patch, 6, signal.SIGINT)
        train(recipe, tmp_path / "run")
    (tmp_path / "run" / "checkpoint-6" / "optimizer.pt").write_bytes(b"")
    with monkeypatch.context() as patch:
        interrupted_at(patch, 1, signal.SIGINT)
        train(recipe, tmp_path / "run")
    assert [update_of(path) for path in checkpoints(tmp_path / "run")] == [4, 5]


def test_a_run_outlives_the_one_it_began_with(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(recipe_of(classification, max_updates=2), tmp_path / "first")
    recipe = recipe_of({**classification, "model": {"from": str(tmp_path / "first")}}, max_updates=6)
    with monkeypatch.context() as patch:
        interrupted_at(patch, 3, signal.SIGINT)
        train(recipe, tmp_path / "second")
    shutil.rmtree(tmp_path / "first")
    assert train(recipe, tmp_path / "second").num_updates == 6


def test_stopped_at_an_update_without_a_validation_it_still_becomes_a_model(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupted_at(patch, 5, signal.SIGINT)
        train(recipe_of(classification), tmp_path / "run")
    train(recipe_of(classification, max_updates=4), tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_full_disk_at_the_end(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(classification, max_updates=2)

    def save(self: Any, folder: str | Path, **options: Any) -> None:
        if Path(folder).name == ".model.partial":
            raise SafetensorError("I/O error: No space left on device")
        original(self, folder, **options)

    original = DepthwisePreTrainedModel.save_pretrained
    with monkeypatch.context() as patch:
        patch.setattr(DepthwisePreTrainedModel, "save_pretrained", save)
        with pytest.raises(CheckpointError, match=r"cannot be written: .*No space left"):
            train(recipe, tmp_path / "run")
    assert train(recipe, tmp_path / "run").num_updates == 2
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_metric_that_no_validation_has(classification: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'training\.metric +"blue" is none of accuracy, f1'):
        train(recipe_of(classification, metric="blue"), tmp_path / "run")
    assert train(recipe_of(classification, metric="matthews", max_updates=2), tmp_path / "run").metric == "matthews"


def test_a_summary_is_only_of_its_own_training(tmp_path: Path) -> None:
    assert finishing.finished(tmp_path, 4, [4]) is None
    content = {"num_updates": 4, "seconds": 1.0, "best": None, "metric": "nll", "num_parameters": 3, "chosen": [2, 4]}
    (tmp_path / "training.json").write_text(json.dumps(content | {"hardware": "a machine"}))
    assert finishing.finished(tmp_path, 4, [4, 2]) is not None
    assert finishing.finished(tmp_path, 4, [4]) is None
    assert finishing.finished(tmp_path, 6, [2, 4]) is None
    (tmp_path / "training.json").write_text("{")
    assert finishing.finished(tmp_path, 4, [2, 4]) is None
