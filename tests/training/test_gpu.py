"""Training on a GPU: it waits for nothing, in every precision."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.training import graphs
from depthwise.training.run import train
from depthwise.training.steering import Steering

from .conftest import recipe_of

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]


EXITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "aligned": ({}, {"curriculum": "gradual"}),
    "mixed": ({}, {"objective": "mixed", "paths": 2, "layer_dropout": "layerskip", "layer_dropout_grows": True}),
    "rotational": ({}, {"curriculum": "rotational", "weights": [1, 1, 0]}),
    "distilled": ({}, {"distill": 0.5}),
    "sequence": ({"kind": "sequence"}, {}),
    "token": ({"kind": "token", "smoothing": 2.0}, {}),
    "poisson": ({"kind": "poisson_binomial"}, {}),
    "ponder": ({"kind": "poisson_binomial", "objective": "expected_loss"}, {}),
    "confidence": ({"kind": "learned_confidence"}, {}),
    "frozen": ({"kind": "poisson_binomial"}, {"freeze": True}),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_an_update_does_not_wait_for_the_device(
    translation: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, clip_norm: float
) -> None:
    assert_never_waits(translation, tmp_path, monkeypatch, precision=precision, clip_norm=clip_norm)


def with_exits(options: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    policy, exits = EXITS[name]
    deep = {**options["model"]["decoder"], "num_layers": 3, "dropout": 0.0, "dropconnect": 0.0}
    encoder = {**options["model"]["encoder"], "dropout": 0.0, "dropconnect": 0.0}
    model = {**options["model"], "encoder": encoder, "decoder": deep, "exits": {}, "policy": policy or None}
    return {**options, "model": model}, exits


@pytest.mark.parametrize("name", EXITS)
def test_exits_wait_for_nothing(
    translation: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options, exits = with_exits(translation, name)
    assert_never_waits(options, tmp_path, monkeypatch, precision="bf16", exits=exits)


@pytest.mark.parametrize("name", [name for name in EXITS if name != "mixed"])
def test_recorded_exits_learn_what_others_learn(
    translation: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The same losses by graphs and without; curricula change what a graph does."""
    options, exits = with_exits(translation, name)
    rates = {"precision": "fp32", "max_updates": 60, "log_every": 1, "validate_every": 60}
    recipe, losses = recipe_of(options, exits=exits, graphs=True, **rates), []
    for num_plain in (10**9, graphs.NUM_PLAIN):
        monkeypatch.setattr(graphs, "NUM_PLAIN", num_plain)
        train(recipe, tmp_path / f"run{num_plain}")
        text = (tmp_path / f"run{num_plain}" / "metrics.jsonl").read_text().splitlines()
        losses.append([line["loss"] for line in map(json.loads, text) if "loss" in line])
    assert len(losses[0]) == 60
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def latent_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    still = {"dropout": 0.0, "dropconnect": 0.0, "num_layers": 3, "norm": "pre"}
    sides = {side: {**options["model"][side], **still} for side in ("encoder", "decoder")}
    model = {**options["model"], **sides, "latent": {"sides": ["encoder", "decoder"]}}
    latent = {"soft_updates": 5, "anneal_updates": 5, "target_depth": 2, "inner_updates": 2, "final_temperature": 1.0}
    return {**options, "model": model}, latent


def test_latent_layers_wait_for_nothing(
    translation: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, latent = latent_options(translation)
    assert_never_waits(options, tmp_path, monkeypatch, precision="bf16", latent=latent)


def test_recorded_latent_layers_learn_what_others_learn(
    translation: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples, which change with every pass, are those of passes that are not recorded."""
    options, latent = latent_options(translation)
    rates = {"precision": "fp32", "max_updates": 60, "log_every": 1, "validate_every": 60}
    recipe, losses = recipe_of(options, latent=latent, graphs=True, **rates), []
    for num_plain in (10**9, graphs.NUM_PLAIN):
        monkeypatch.setattr(graphs, "NUM_PLAIN", num_plain)
        train(recipe, tmp_path / f"run{num_plain}")
        text = (tmp_path / f"run{num_plain}" / "metrics.jsonl").read_text().splitlines()
        losses.append([line["loss"] for line in map(json.loads, text) if "loss" in line])
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_recorded_paths_are_drawn_anew(translation: dict[str, Any], tmp_path: Path) -> None:
    options, exits = with_exits(translation, "mixed")
    rates = {"max_updates": 60, "log_every": 5, "optimizer": {"kind": "adam", "lr": 1e-2}}
    train(recipe_of(options, exits=exits, graphs=True, precision="fp32", **rates), tmp_path / "run")
    text = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    found = [line for line in map(json.loads, text) if "nll_at_1" in line]
    assert found[-1]["loss"] < 0.9 * found[0]["loss"]


def assert_never_waits(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **training: Any
) -> None:
    original = Steering.on_step_end

    def on_step_end(self: Steering, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control = original(self, args, state, control, **kwargs)
        watched = 2 <= state.global_step < 10
        torch.cuda.set_sync_debug_mode("error" if watched else "default")
        return control

    monkeypatch.setattr(Steering, "on_step_end", on_step_end)
    rare = {"max_updates": 12, "log_every": 12, "validate_every": 12}
    recipe = recipe_of(options, **rare, workers=0, **training)
    try:
        train(recipe, tmp_path / "run")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    line, _ = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert 0 < json.loads(line)["loss"] < 20


def test_workers_and_accumulation(translation: dict[str, Any], tmp_path: Path) -> None:
    recipe = recipe_of(translation, max_updates=6, workers=2, accumulate=2, precision="bf16")
    assert train(recipe, tmp_path / "run").num_updates == 6
