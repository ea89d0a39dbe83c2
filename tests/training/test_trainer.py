"""What an update computes, what is logged, and which checkpoints become the model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from depthwise.config import recipe_yaml
from depthwise.errors import BackendUnavailable, CheckpointError, ConfigError, DataError, TrainingError
from depthwise.training import trainer
from depthwise.training.averaging import average_weights
from depthwise.training.checkpoints import checkpoints, update_of
from depthwise.training.run import num_updates, train
from depthwise.training.schedules import schedule_options

from .conftest import PATIENCE, recipe_of


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def without_noise(options: dict[str, Any]) -> dict[str, Any]:
    model = dict(options["model"])
    for side in ("encoder", "decoder"):
        if side in model:
            model[side] = {**model[side], "dropout": 0.0, "dropconnect": 0.0}
    return {**options, "model": model}


@pytest.mark.parametrize("task", ["classification", "translation"])
def test_accumulated_batches_are_one_batch(
    task: str, classification: dict[str, Any], translation: dict[str, Any], tmp_path: Path
) -> None:
    """I16: the sum over all tokens of an update by their number, however unevenly they fall into batches."""
    options = without_noise(classification if task == "classification" else translation)
    plain = {"optimizer": {"kind": "nesterov", "lr": 0.1}, "schedule": {"kind": "constant"}, "log_every": 1}
    sizes = {"batch_tokens": None, "max_updates": 1, "validate_every": 1}
    whole = recipe_of(options, **plain, **sizes, batch_rows=120)
    parts = recipe_of(options, **plain, **sizes, batch_rows=17, accumulate=8)  # seven of 17 and one of 1
    train(whole, tmp_path / "whole")
    train(parts, tmp_path / "parts")
    ours, theirs = weights(tmp_path / "parts"), weights(tmp_path / "whole")
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-6)
    (one,), (other,) = ([line for line in metrics(tmp_path / run) if "loss" in line] for run in ("whole", "parts"))
    assert one["num_items"] == other["num_items"]
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)


def test_it_learns(classification: dict[str, Any], translation: dict[str, Any], tmp_path: Path) -> None:
    done = train(recipe_of(classification, max_updates=120, select="best"), tmp_path / "colours")
    assert done.metric == "accuracy"
    assert done.best == 100.0
    train(recipe_of(without_noise(translation), max_updates=150), tmp_path / "backwards")
    losses = [line["valid_nll"] for line in metrics(tmp_path / "backwards") if "valid_nll" in line]
    assert losses[-1] < 0.7 * losses[0]


def test_the_run_is_a_model_that_transformers_loads(classification: dict[str, Any], tmp_path: Path) -> None:
    train(recipe_of(classification, max_updates=4), tmp_path / "run")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert model.config.id2label == {0: "blue", 1: "green", 2: "red"}
    assert model.config.use_cache is True
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "recipe.yaml", "metrics.jsonl"} <= names
    assert not any(name.endswith(".partial") for name in names)


def test_the_last_checkpoints_are_averaged_and_others_cleared_away(
    classification: dict[str, Any], tmp_path: Path
) -> None:
    recipe = recipe_of(classification, max_updates=12, validate_every=2, average=3, save_every=5)
    train(recipe, tmp_path / "run")
    kept = checkpoints(tmp_path / "run")
    assert [update_of(path) for path in kept] == [8, 10, 12]
    assert [(path / "optimizer.pt").exists() for path in kept] == [False, False, True]
    mean = average_weights(kept)
    for name, value in weights(tmp_path / "run").items():
        torch.testing.assert_close(value, mean[name], rtol=0, atol=0)
    assert json.loads((tmp_path / "run" / "training.json").read_text())["averaged"] == [8, 10, 12]


def test_the_best_checkpoint_becomes_the_model(classification: dict[str, Any], tmp_path: Path) -> None:
    recipe = recipe_of(classification, max_updates=30, validate_every=3, select="best", metric="loss")
    train(recipe, tmp_path / "run")
    by_update = {line["update"]: line["valid_loss"] for line in metrics(tmp_path / "run") if "valid_loss" in line}
    best = min(by_update, key=lambda update: by_update[update])
    (averaged,) = json.loads((tmp_path / "run" / "training.json").read_text())["averaged"]
    assert averaged == best
    kept = load_file(tmp_path / "run" / f"checkpoint-{best}" / "model.safetensors")
    assert all(torch.equal(value, kept[name]) for name, value in weights(tmp_path / "run").items())


def test_patience_ends_a_training_that_no_longer_gets_better(classification: dict[str, Any], tmp_path: Path) -> None:
    still = {"kind": "adam", "lr": 1e-12}
    recipe = recipe_of(classification, max_updates=50, validate_every=2, patience=3, optimizer=still, metric="accuracy")
    done = train(recipe, tmp_path / "run")
    assert done.num_updates == 8  # the first is the best, then three that are not better
    assert train(recipe, tmp_path / "run").was_finished


def test_a_metric_that_needs_predictions_can_choose(translation: dict[str, Any], tmp_path: Path) -> None:
    recipe = recipe_of(translation, max_updates=4, validate_every=2, metric="sacrebleu", select="best")
    assert train(recipe, tmp_path / "run").metric == "sacrebleu"
    assert all("valid_sacrebleu" in line for line in metrics(tmp_path / "run") if "valid_nll" in line)
    wrong = recipe_of(translation, max_updates=2, validate_every=2, metric="accuracy")
    with pytest.raises(ConfigError, match='"accuracy" is none of bleu, '):
        train(wrong, tmp_path / "wrong")


def test_epochs_end_where_the_data_ends(classification: dict[str, Any], tmp_path: Path) -> None:
    options = {"batch_tokens": None, "batch_rows": 25, "max_updates": None, "max_epochs": 3, "validate_every": None}
    train(recipe_of(classification, **options), tmp_path / "run")
    validations = [(line["update"], line["epoch"]) for line in metrics(tmp_path / "run") if "valid_loss" in line]
    assert validations == [(5, 1.0), (10, 2.0), (15, 3.0)]


def test_gradient_norms_of_every_layer(classification: dict[str, Any], tmp_path: Path) -> None:
    train(recipe_of(classification, max_updates=4, gradient_norms=True, clip_norm=0.01), tmp_path / "run")
    line = metrics(tmp_path / "run")[0]
    parts = {name.removeprefix("gradient_norm/"): value for name, value in line.items() if "gradient_norm/" in name}
    assert set(parts) == {"encoder.embedding", "encoder.0", "encoder.stack", "classifier"}
    whole = sum(value**2 for value in parts.values()) ** 0.5
    assert line["gradient_norm"] == pytest.approx(whole, rel=1e-5)  # all of them before clipping
    assert whole > 0.01


COMPILED = """
import functools, sys, torch
torch.compile = functools.partial(torch.compile, backend="aot_eager")
from depthwise.cli.main import main
main()
"""


def test_compiled_training_is_the_same(classification: dict[str, Any], tmp_path: Path) -> None:
    """With a back end that needs no C++ compiler, in a process without checked shapes, which are not to be traced."""
    options = without_noise(classification)
    train(recipe_of(options, max_updates=8), tmp_path / "plain")
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe_of(options, max_updates=8, compile=True)))
    command = ["train", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "compiled")]
    subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILED, *command], check=True, timeout=PATIENCE)
    ours, theirs = (
        [line["loss"] for line in metrics(tmp_path / run) if "loss" in line] for run in ("compiled", "plain")
    )
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_half_precision_on_a_cpu(classification: dict[str, Any], tmp_path: Path) -> None:
    train(recipe_of(classification, max_updates=4, precision="bf16"), tmp_path / "half")
    train(recipe_of(classification, max_updates=4), tmp_path / "full")
    ours, theirs = (metrics(tmp_path / run)[0]["loss"] for run in ("half", "full"))
    assert ours != theirs
    assert ours == pytest.approx(theirs, rel=0.05)
    assert all(value.dtype == torch.float32 for value in weights(tmp_path / "half").values())


def test_half_states_change_nothing_on_a_cpu(classification: dict[str, Any], tmp_path: Path) -> None:
    for half in (False, True):
        options = {"max_updates": 4, "device": "cpu", "graphs": True, "half_states": half}
        train(recipe_of(classification, **options), tmp_path / str(half))
    ours, theirs = (metrics(tmp_path / str(half))[0]["loss"] for half in (True, False))
    assert ours == theirs


def test_what_the_machine_lacks_is_said_before_any_work(classification: dict[str, Any], tmp_path: Path) -> None:
    for training, message in [
        ({"device": "cuda"}, "there is no GPU here"),
        ({"precision": "fp16"}, "fp16 needs a GPU"),
    ]:
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        with pytest.raises(BackendUnavailable, match=message):
            train(recipe_of(classification, **training), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_report_that_is_not_installed(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("depthwise.training.run.find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match=r"wandb is not installed; pip install wandb"):
        train(recipe_of(classification, report=["wandb"]), tmp_path / "run")


def test_a_loss_that_is_no_number_ends_the_training(classification: dict[str, Any], tmp_path: Path) -> None:
    wild = {"optimizer": {"kind": "nesterov", "lr": 1e30}, "schedule": {"kind": "constant"}, "log_every": 2}
    with pytest.raises(TrainingError, match="no number any more at update 2; lower the learning rate"):
        train(recipe_of(classification, **wild), tmp_path / "run")
    assert metrics(tmp_path / "run")[0]["loss"] is None


WILD: dict[str, Any] = {"optimizer": {"kind": "nesterov", "lr": 1e30}, "schedule": {"kind": "constant"}}
AT_VALIDATION = {"log_every": 100, "validate_every": 2}


@pytest.mark.parametrize(
    ("found_by", "changes"),
    [("loss", {"log_every": 2}), ("valid_loss", AT_VALIDATION), ("valid_loss", {**AT_VALIDATION, "metric": "bleu"})],
)
def test_the_last_line_of_a_training_that_diverged_says_so(
    found_by: str,
    changes: dict[str, Any],
    translation: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where perplexity, which is no number either, is logged; and nothing is searched for any more."""
    monkeypatch.setattr(trainer, "score_split", lambda *_: pytest.fail("such a model has nothing to say"))
    with pytest.raises(TrainingError, match="no number any more at update 2"):
        train(recipe_of(translation, **WILD, **changes), tmp_path / "run")
    assert metrics(tmp_path / "run")[-1][found_by] is None


def test_the_last_line_says_so_where_nothing_is_validated(translation: dict[str, Any], tmp_path: Path) -> None:
    translation["data"].pop("valid")
    with pytest.raises(TrainingError, match="no number any more at update 2"):
        train(recipe_of(translation, **WILD, **AT_VALIDATION), tmp_path / "run")
    assert metrics(tmp_path / "run")[-1]["loss"] is None


def test_one_label_only(classification: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("red\ta red one\nred\tanother red one\n")
    with pytest.raises(DataError, match='all training examples have the label "red"'):
        train(recipe_of(classification), tmp_path / "run")


def test_a_label_that_training_never_saw(classification: dict[str, Any], tmp_path: Path) -> None:
    with (tmp_path / "valid.tsv").open("a") as file:
        file.write("pink\ta pink one\n")
    with pytest.raises(DataError, match=r'valid\.tsv:41: label "pink" was never seen in training'):
        train(recipe_of(classification), tmp_path / "run")


def test_what_a_schedule_takes_from_the_length() -> None:
    assert schedule_options({"kind": "linear", "warmup": 0.1}, 1000) == {"kind": "linear", "warmup": 100, "total": 1000}
    assert schedule_options({"kind": "cosine", "warmup": 100}, 1000)["period"] == 900
    assert schedule_options({"kind": "polynomial", "total": 7}, 1000)["total"] == 7
    assert schedule_options({"kind": "inverse_sqrt", "warmup": 4000}, 10) == {"kind": "inverse_sqrt", "warmup": 4000}


def test_how_long_a_training_takes(classification: dict[str, Any]) -> None:
    assert num_updates(recipe_of(classification, max_updates=7), 100) == 7
    assert num_updates(recipe_of(classification, max_updates=None, max_epochs=2.5, accumulate=3), 100) == 83
    assert num_updates(recipe_of(classification, max_updates=50, max_epochs=0.1), 100) == 10


def test_a_run_begins_with_the_weights_of_another(classification: dict[str, Any], tmp_path: Path) -> None:
    train(recipe_of(classification, max_updates=4), tmp_path / "first")
    (tmp_path / "train.tsv").write_text("warm\tred warm\ncold\tcold blue\n" * 10)
    (tmp_path / "valid.tsv").write_text("warm\twarm\ncold\tcold\n")
    further = {**classification, "model": {"from": str(tmp_path / "first"), "encoder": {"dropout": 0.0}}}
    frozen = {"optimizer": {"kind": "adam", "lr": 1e-12}}
    train(recipe_of(further, max_updates=1, **frozen), tmp_path / "second")
    ours, theirs = weights(tmp_path / "second"), weights(tmp_path / "first")
    for name in ours:
        if "classifier" not in name:  # two classes instead of three
            torch.testing.assert_close(ours[name], theirs[name])
    tokenizers = [(tmp_path / run / "tokenizer.json").read_text() for run in ("first", "second")]
    assert json.loads(tokenizers[0])["model"] == json.loads(tokenizers[1])["model"]
    with pytest.raises(CheckpointError, match="is no folder"):
        train(recipe_of({**classification, "model": {"from": "nowhere"}}, max_updates=1), tmp_path / "third")
