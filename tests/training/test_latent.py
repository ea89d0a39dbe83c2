"""Training with latent layers: two levels of updates, exact resumption, a record of all layers."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from depthwise.config import recipe_yaml
from depthwise.errors import ConfigError
from depthwise.training.checks import check_training
from depthwise.training.run import train
from depthwise.training.steering import Steering
from depthwise.training.trainer import DepthwiseTrainer

from .conftest import PATIENCE, recipe_of
from .latent_processes import watched
from .test_processes import LAUNCH
from .test_resume import assert_same_run, interrupted_at
from .test_sequence_to_sequence import multilingual

__all__ = ["multilingual"]

LOGITS = "model.decoder.latent.logits"
FAST = {"soft_updates": 2, "anneal_updates": 2, "lr": 0.1}


def latent_options(options: dict[str, Any], norm: str = "pre", **latent: Any) -> dict[str, Any]:
    stack = {**options["model"]["decoder"], "norm": norm, "num_layers": 3}
    return {**options, "model": {**options["model"], "decoder": stack, "latent": latent}}


@pytest.fixture
def logits_by_update(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """All weights after every update."""
    found: list[dict[str, torch.Tensor]] = []
    original = Steering.on_step_end

    def on_step_end(self: Steering, *args: Any, **kwargs: Any) -> Any:
        trained: DepthwiseTrainer = self.trainer
        found.append({name: value.clone() for name, value in trained.trained_model.state_dict().items()})
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Steering, "on_step_end", on_step_end)
    return found


@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
def test_logits_change_with_every_third_update_alone(
    translation: dict[str, Any], tmp_path: Path, logits_by_update: list[dict[str, torch.Tensor]], clip_norm: float
) -> None:
    """And weights learn until then as if there were no gradient of logits at all (I29)."""
    options = latent_options(translation)
    length = {"max_updates": 7, "clip_norm": clip_norm}
    train(recipe_of(options, **length, latent={**FAST, "inner_updates": 3}), tmp_path / "run")
    found = list(logits_by_update)
    changed = [not torch.equal(one[LOGITS], other[LOGITS]) for one, other in itertools.pairwise(found)]
    assert changed == [False, True, False, False, True, False]
    assert not found[0][LOGITS].any()
    logits_by_update.clear()
    train(recipe_of(options, **length, latent={**FAST, "inner_updates": 7}), tmp_path / "later")
    assert all(torch.equal(value, logits_by_update[1][name]) for name, value in found[1].items())
    assert torch.equal(logits_by_update[5][LOGITS], found[0][LOGITS])
    assert not torch.equal(logits_by_update[6][LOGITS], found[0][LOGITS])


def test_one_inner_update_is_joint_training(
    translation: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = latent_options(translation)
    train(recipe_of(options, max_updates=5, latent=FAST), tmp_path / "levels")
    monkeypatch.setattr("depthwise.training.latent.LatentSteps.hold", lambda self, update: None)
    train(recipe_of(options, max_updates=5, latent=FAST), tmp_path / "joint")
    assert_same_run(tmp_path / "levels", tmp_path / "joint")
    assert load_file(tmp_path / "joint" / "model.safetensors")[LOGITS].any()


def test_the_rate_of_the_logits_is_their_own(
    translation: dict[str, Any], tmp_path: Path, logits_by_update: list[dict[str, torch.Tensor]]
) -> None:
    """Adam's first step is as long as the rate."""
    options = latent_options(translation)
    constant = {"schedule": {"kind": "constant"}, "max_updates": 1, "optimizer": {"kind": "adamw", "lr": 1e-3}}
    train(recipe_of(options, **constant, latent={**FAST, "lr": 0.25}), tmp_path / "run")
    assert logits_by_update[0][LOGITS].abs().tolist()[0] == pytest.approx([0.25] * 3, rel=1e-3)
    logits_by_update.clear()
    train(recipe_of(options, **constant, latent={**FAST, "lr": None}), tmp_path / "same")
    assert logits_by_update[0][LOGITS].abs().tolist()[0] == pytest.approx([1e-3] * 3, rel=1e-2)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_goes_on_bit_by_bit(
    translation: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    options = latent_options(translation, sides=["decoder"])
    latent = {**FAST, "inner_updates": 3, "target_depth": 2, "final_temperature": 1.0, "temperature_updates": 9}
    recipe = recipe_of(options, latent=latent, accumulate=accumulate, max_updates=10)
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupted_at(patch, 7, signal.SIGTERM)
        train(recipe, tmp_path / "parts")
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    assert (tmp_path / "parts/layers.jsonl").read_bytes() == (tmp_path / "whole/layers.jsonl").read_bytes()


def test_layers_are_on_record(translation: dict[str, Any], tmp_path: Path) -> None:
    train(recipe_of(latent_options(translation), latent=FAST, max_updates=6), tmp_path / "run")
    record = [json.loads(line) for line in (tmp_path / "run" / "layers.jsonl").read_text().splitlines()]
    assert [line["update"] for line in record] == [3, 6]
    last = record[-1]["decoder"]["all"]
    logits = load_file(tmp_path / "run" / "model.safetensors")[LOGITS]
    assert last["probabilities"] == pytest.approx(logits.sigmoid()[0].tolist(), abs=1e-4)
    assert set(last["samples"]) <= {0.0, 1.0}
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-2])
    assert line["expected_depth/decoder"] == pytest.approx(float(logits.sigmoid().sum()))
    assert line["effective_depth/decoder"] == float((logits > 0).sum())


@pytest.mark.parametrize("norm", ["pre", "none"])
def test_a_wanted_depth_is_reached(translation: dict[str, Any], tmp_path: Path, norm: str) -> None:
    """Also without any norm in the stack."""
    latent = {**FAST, "beta": 0.01, "target_depth": 1, "depth_weight": 1.0}
    rates = {"max_updates": 40, "optimizer": {"kind": "adam", "lr": 3e-3}, "validate_every": 40}
    train(recipe_of(latent_options(translation, norm), latent=latent, **rates), tmp_path / "run")
    logits = load_file(tmp_path / "run" / "model.safetensors")[LOGITS]
    assert float(logits.sigmoid().sum()) == pytest.approx(1, abs=0.35)


def test_the_released_code_trains(multilingual: dict[str, Any], tmp_path: Path) -> None:
    """All of its habits at once, hard samples that close a layer for all languages included."""
    habits = {"kl": "fairseq", "prior": "fairseq_aggregated", "ramps": "fairseq", "sharing": "fairseq"}
    wanted = {"utilisation": "samples", "depth_loss": "square", "target_depth": 1, "sharing_weight": 0.1}
    options = latent_options(multilingual, per_language=True, init=-3.0, gates="sampled")
    train(recipe_of(options, latent={**FAST, **habits, **wanted}, max_updates=12), tmp_path / "run")
    last = json.loads((tmp_path / "run" / "layers.jsonl").read_text().splitlines()[-1])["decoder"]
    assert any(not any(of_layer) for of_layer in zip(*(of["samples"] for of in last.values()), strict=True))
    assert load_file(tmp_path / "run" / "model.safetensors")[LOGITS].isfinite().all()


def together(script: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """Two processes of a script beside this file."""
    command = [sys.executable, *LAUNCH, str(Path(__file__).with_name(script)), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False)


def test_processes_draw_alike(multilingual: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes drop out differently and see batches of different languages. Their samples, by which hard gates
    close layers, are the same, and so are the logits that learn from them; the noise is that of a single process."""
    options = latent_options(multilingual, per_language=True)
    options["data"] = {**options["data"], "temperature": 1.0, "rounds": True}
    length = {"max_updates": 4, "accumulate": 2, "validate_every": 4, "schedule": {"kind": "constant"}}
    recipe = recipe_of(options, **length, latent={**FAST, "soft_updates": 1})
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    done = together("latent_processes.py", tmp_path / "recipe.yaml", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"two.{rank}.json").read_text()) for rank in range(2))
    assert {passed["model"] for passed in first + second} == {"DistributedDataParallel"}
    assert [passed["update"] for passed in first] == [0, 0, 1, 1, 2, 2, 3, 3]
    for what in ("update", "noise", "samples", "logits"):
        assert [passed[what] for passed in first] == [passed[what] for passed in second], what
    hard = [sample for passed in first if passed["update"] >= 1 for row in passed["samples"] for sample in row]
    assert set(hard) == {0.0, 1.0}
    logits = [passed["logits"] for passed in first]
    assert [one == other for one, other in itertools.pairwise(logits)] == [True, False] * 3 + [True]
    for update in range(4):
        assert {passed["pair"] for passed in first + second if passed["update"] == update} == {0, 1}
    passes: list[dict[str, Any]] = []
    monkeypatch.setattr(DepthwiseTrainer, "training_step", watched(passes))
    train(recipe, tmp_path / "one")
    assert [passed["noise"] for passed in passes] == [passed["noise"] for passed in first]


def test_sharded_processes_learn_alike() -> None:
    """Logits that are split over two processes: samples and gradients are those of a whole model."""
    done = together("sharded_latent.py")
    assert "both agree" in done.stdout, done.stderr


def test_gates_may_be_sharded(translation: dict[str, Any]) -> None:
    check_training(recipe_of(latent_options(translation), shard=True))


def test_gates_of_a_model_without_any(translation: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training.latent.*set model.latent"):
        train(recipe_of(translation, latent={}), tmp_path / "run")
