"""Whatever interrupts a training, the same command goes on, and nobody can tell afterwards."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from depthwise.config import recipe_yaml
from depthwise.errors import CheckpointError, DataError, TrainingError
from depthwise.training.checkpoints import checkpoints, damage, newest_whole, update_of
from depthwise.training.run import train
from depthwise.training.trainer import DepthwiseTrainer

from .conftest import PATIENCE, await_checkpoint, recipe_of

MIDDLE = 7
"""An update that neither writes a line nor validates, in the middle of an epoch."""


def interrupted_at(monkeypatch: pytest.MonkeyPatch, update: int, number: int) -> None:
    """Send this process a signal while it computes the given update."""
    original = DepthwiseTrainer.compute_loss
    calls = 0

    def compute_loss(self: DepthwiseTrainer, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == update * self.args.gradient_accumulation_steps:
            os.kill(os.getpid(), number)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(DepthwiseTrainer, "compute_loss", compute_loss)


def assert_same_run(ours: Path, theirs: Path) -> None:
    assert (ours / "metrics.jsonl").read_bytes() == (theirs / "metrics.jsonl").read_bytes()
    one, other = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_signal_stops_after_the_update_and_the_run_goes_on_bit_by_bit(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, accumulate: int
) -> None:
    recipe = recipe_of(classification, accumulate=accumulate, max_updates=12)
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupted_at(patch, MIDDLE, number)
        stopped = train(recipe, tmp_path / "parts")
    assert (stopped.interrupted, stopped.num_updates) == (number, MIDDLE)
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    done = train(recipe, tmp_path / "parts")
    assert (done.interrupted, done.num_updates) == (None, 12)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_translation_goes_on_bit_by_bit(
    translation: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(translation, select="last", average=2)
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupted_at(patch, 8, signal.SIGINT)
        train(recipe, tmp_path / "parts")
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_a_signal_to_all_processes_leaves_the_workers_at_work(classification: dict[str, Any], tmp_path: Path) -> None:
    """Ctrl-C reaches every process of a terminal, not only the one that trains."""
    recipe = recipe_of(classification, max_updates=100_000, validate_every=100_000, save_every=5, workers=2)
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    command = ["-m", "depthwise", "train", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, *command], stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    await_checkpoint(process, tmp_path / "run")
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "the same command goes on from there" in output
    assert "Traceback" not in errors


def test_killed_without_warning_it_goes_on_from_the_last_checkpoint(
    classification: dict[str, Any], tmp_path: Path
) -> None:
    options = {"validate_every": 100, "save_every": 5}
    recipe = recipe_of(classification, **options, max_updates=100_000)  # it cannot come to its end by itself
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    command = ["-m", "depthwise", "train", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, *command],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # as in this process: sums depend on the number of threads
    )
    await_checkpoint(process, tmp_path / "run")
    process.kill()
    assert process.wait() == -signal.SIGKILL
    last = newest_whole(tmp_path / "run")
    assert last is not None
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"update": 99998, "loss": 0.0}\n{"update": 99999, "loss"')  # later than it, and half a line
    recipe = recipe_of(classification, **options, max_updates=update_of(last) + 20)
    train(recipe, tmp_path / "run")
    train(recipe, tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("victim", ["optimizer.pt", "model.safetensors", "progress.json", "rng_state.pth"])
@pytest.mark.parametrize("how", ["cut", "changed", "gone"])
def test_a_damaged_checkpoint_is_named_and_the_newest_whole_one_is_used(
    classification: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    victim: str,
    how: str,
) -> None:
    recipe = recipe_of(classification, save_every=3, max_updates=9)
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupted_at(patch, MIDDLE, signal.SIGTERM)
        train(recipe, tmp_path / "parts")
    path = tmp_path / "parts" / f"checkpoint-{MIDDLE}" / victim
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-9] if how == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    train(recipe, tmp_path / "parts")
    assert f"checkpoint-{MIDDLE} is damaged: {victim}" in caplog.text
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_where_all_checkpoints_are_damaged_nothing_begins_anew_by_itself(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(classification)
    interrupted_at(monkeypatch, 3, signal.SIGINT)
    train(recipe, tmp_path / "run")
    (tmp_path / "run" / "checkpoint-3" / "optimizer.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"checkpoint-3 is damaged: optimizer\.pt .* remove"):
        train(recipe, tmp_path / "run")


def test_a_full_disk_loses_nothing(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(classification, save_every=2)
    original = torch.save
    calls = 0

    def save(value: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += "optimizer" in str(path)
        if calls == 3:
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        original(value, path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save)
        with pytest.raises(CheckpointError, match=r"checkpoint-6 cannot be written: No space left .*; make room"):
            train(recipe, tmp_path / "run")
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["checkpoint-2", "checkpoint-4"]
    assert all(damage(path) is None for path in checkpoints(tmp_path / "run"))
    assert not list((tmp_path / "run").glob(".checkpoint*"))
    train(recipe, tmp_path / "run")
    train(recipe, tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_finished_run_is_left_alone_and_can_be_prolonged(classification: dict[str, Any], tmp_path: Path) -> None:
    train(recipe_of(classification, max_updates=6), tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns
    again = train(recipe_of(classification, max_updates=6), tmp_path / "run")
    assert again.was_finished
    assert (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns == before
    longer = train(recipe_of(classification, max_updates=10), tmp_path / "run")
    assert (longer.num_updates, longer.was_finished) == (10, False)


def test_a_prolonged_run_follows_the_longer_schedule_at_once(classification: dict[str, Any], tmp_path: Path) -> None:
    options = {"schedule": {"kind": "linear"}, "log_every": 1, "validate_every": 4}
    train(recipe_of(classification, **options, max_updates=4), tmp_path / "run")
    train(recipe_of(classification, **options, max_updates=8), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert rates == pytest.approx([1e-2 * share for share in (1, 0.75, 0.5, 0.25, 0.5, 0.375, 0.25, 0.125)])


def test_another_recipe_cannot_go_on_in_the_same_folder(
    classification: dict[str, Any], translation: dict[str, Any], tmp_path: Path
) -> None:
    train(recipe_of(classification, max_updates=2), tmp_path / "run")
    with pytest.raises(TrainingError, match=r"was begun with another recipe: training\.batch_tokens was 64, not 32;"):
        train(recipe_of(classification, max_updates=2, batch_tokens=32), tmp_path / "run")
    with pytest.raises(TrainingError, match=r"task was text_classification, not translation"):
        train(recipe_of(translation), tmp_path / "run")


def test_a_mistake_before_the_first_checkpoint_can_be_mended(
    classification: dict[str, Any], translation: dict[str, Any], tmp_path: Path
) -> None:
    with (tmp_path / "valid.tsv").open("a") as file:
        file.write("pink\ta pink one\n")
    with pytest.raises(DataError, match="never seen in training"):
        train(recipe_of(classification, max_updates=2), tmp_path / "run")
    assert train(recipe_of(translation, max_updates=2), tmp_path / "run").num_updates == 2
    train(recipe_of(translation, max_updates=2), tmp_path / "fresh")
    assert_same_run(tmp_path / "run", tmp_path / "fresh")


def test_other_data_cannot_go_on_in_the_middle_of_an_epoch(
    classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupted_at(patch, 3, signal.SIGINT)
        train(recipe_of(classification), tmp_path / "run")
    data = tmp_path / "train.tsv"
    data.write_text(data.read_text().replace("red\t", "red\twarm warm "))
    with pytest.raises(DataError, match="other data"):
        train(recipe_of(classification), tmp_path / "run")


def test_a_folder_that_holds_something_else_is_not_touched(classification: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(TrainingError, match="not empty and holds no training"):
        train(recipe_of(classification), tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_the_metrics_hold_nothing_that_depends_on_time(classification: dict[str, Any], tmp_path: Path) -> None:
    train(recipe_of(classification, max_updates=10), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [4, 8, 10]
    assert not any(re.search("second|time|speed", name) for line in lines for name in line)
