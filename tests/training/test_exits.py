"""Exits and policies, trained from a recipe: they learn, they go on bit by bit, and what is frozen stays."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from depthwise.config import load_recipe
from depthwise.errors import CheckpointError, ConfigError
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.tasks import open_task
from depthwise.training.run import train

from .conftest import STACK, recipe_of
from .test_encoder_tasks import answering, tagging  # noqa: F401 (fixtures)
from .test_language_models import options_of
from .test_processes import still, train_together
from .test_resume import assert_same_run, interrupted_at

DEEP = {**STACK, "num_layers": 3, "dropout": 0.0}
POLICIES: dict[str, dict[str, Any]] = {
    "sequence": {"kind": "sequence"},
    "token": {"kind": "token", "smoothing": 2.0},
    "poisson_binomial": {"kind": "poisson_binomial", "penalty": 0.1},
    "expected_loss": {"kind": "poisson_binomial", "objective": "expected_loss"},
    "learned_confidence": {"kind": "learned_confidence"},
}


def with_exits(options: dict[str, Any], *, exits: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    """A recipe whose last stack has three blocks and an exit after each."""
    side = "decoder" if "decoder" in options["model"] else "encoder"
    deep = {**options["model"][side], "num_layers": 3, "dropout": 0.0, "dropconnect": 0.0}
    return {**options, "model": {**options["model"], side: deep, "exits": exits or {}, **model}}


def lines(run: Path, name: str = "loss") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if name in line]


def assert_learns(run: Path) -> None:
    losses = [line["loss"] for line in lines(run)]
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_trained_with_the_exits(translation: dict[str, Any], tmp_path: Path, policy: str) -> None:
    recipe = recipe_of(with_exits(translation, policy=POLICIES[policy]), max_updates=24, log_every=4)
    train(recipe, tmp_path / "run")
    assert_learns(tmp_path / "run")
    policy_losses = [line["policy_loss"] for line in lines(tmp_path / "run")]
    assert min(policy_losses[1:]) < policy_losses[0]
    found = lines(tmp_path / "run", "valid_nll")[-1]
    assert found["valid_nll"] == found["valid_nll_at_3"] < found["valid_nll_at_1"] * 1.5
    assert found["valid_policy_loss"] > 0
    trained = DepthwiseForSeq2SeqLM.from_pretrained(tmp_path / "run").trained_policy
    torch.manual_seed(recipe.seed)
    fresh = open_task(load_recipe(tmp_path / "run" / "recipe.yaml"), tmp_path / "run").new_model().trained_policy
    assert all(not torch.equal(one, other) for one, other in zip(trained.parameters(), fresh.parameters(), strict=True))


OTHER_WAYS: dict[str, dict[str, Any]] = {
    "mixed": {"objective": "mixed", "paths": 2},
    "rotational": {"weights": "layerskip", "curriculum": "rotational", "curriculum_every": 2},
    "gradual": {"weights": "inverse", "curriculum": "gradual", "curriculum_share": 0.5},
    "distill": {"distill": 1, "weights": [1, 0.5, 2]},
    "scaled": {"gradient_scale": 0.5, "layer_dropout": "layerskip"},
    "layerdrop": {"layer_dropout": "layerdrop"},
    "layerskip": {"layer_dropout": "layerskip", "layer_dropout_chance": 0.3, "layer_dropout_grows": True},
    "mixed and dropped": {"objective": "mixed", "layer_dropout": "layerskip"},
}


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_every_way_of_training(translation: dict[str, Any], tmp_path: Path, way: str) -> None:
    heads = {"heads": "separate"} if way in ("mixed", "rotational", "distill") else {}
    recipe = recipe_of(with_exits(translation, exits=heads), max_updates=30, log_every=5, exits=OTHER_WAYS[way])
    train(recipe, tmp_path / "run")
    nll = [line["nll"] for line in lines(tmp_path / "run")]
    assert nll[-1] < 0.95 * nll[0]
    assert {f"valid_nll_at_{depth}" for depth in (1, 2, 3)} <= lines(tmp_path / "run", "valid_nll")[-1].keys()


def test_it_goes_on_bit_by_bit(translation: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Curricula and what is drawn follow from the update alone."""
    exits = {"curriculum": "rotational", "layer_dropout": "layerskip", "layer_dropout_grows": True}
    recipe = recipe_of(with_exits(translation, policy={"kind": "token"}), exits=exits)
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupted_at(patch, 5, signal.SIGINT)
        assert train(recipe, tmp_path / "parts").interrupted == signal.SIGINT
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize("kind", ["tagging", "answering", "classification", "numbers", "language"])
def test_every_task_has_exits(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    policy: dict[str, Any] = {"kind": "poisson_binomial", "oracle": "likelihood"}
    if kind == "language":
        options = options_of(tmp_path, "language_modeling", "decoder")
    elif kind == "numbers":
        options = numbers_of(request.getfixturevalue("classification"), tmp_path)
    else:
        options = request.getfixturevalue(kind)
    options = with_exits(options, policy=policy, exits={"heads": "separate"})
    train(recipe_of(options, max_updates=30, log_every=5, validate_every=15), tmp_path / "run")
    assert_learns(tmp_path / "run")
    valid = lines(tmp_path / "run", "valid_loss")
    assert valid[-1]["valid_nll_at_3"] < valid[0]["valid_nll_at_3"] * 1.01
    if kind in ("tagging", "classification"):
        assert valid[-1]["valid_nll"] == pytest.approx(valid[-1]["valid_nll_at_3"])
    mixed = {**options, "model": {**options["model"], "policy": None}}
    few = {"max_updates": 10, "validate_every": 10, "log_every": 5}
    train(recipe_of(mixed, exits={"objective": "mixed"}, **few), tmp_path / "mixed")
    assert lines(tmp_path / "mixed", "valid_loss")


def numbers_of(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """How many words there are."""
    for split in ("train", "valid", "test"):
        texts = [line.split("\t")[1] for line in (folder / f"{split}.tsv").read_text().splitlines()]
        (folder / f"{split}.tsv").write_text("".join(f"{len(text.split())}\t{text}\n" for text in texts))
    return {**options, "data": {**options["data"], "labels": "number"}}


# Two phases


@pytest.mark.parametrize("began_with_exits", [True, False])
def test_what_is_frozen_stays(translation: dict[str, Any], tmp_path: Path, began_with_exits: bool) -> None:
    """Phase two after aligned exits, or exits that are added to an ordinary model (DeeBERT, exit tuning)."""
    pre = {**translation, "model": {**translation["model"], "decoder": {**DEEP, "norm": "pre"}}}
    first = with_exits(pre) if began_with_exits else pre
    train(recipe_of(first), tmp_path / "first")
    model = {"from": str(tmp_path / "first"), "policy": {"kind": "poisson_binomial"}}
    model |= {} if began_with_exits else {"exits": {"heads": "separate"}}
    recipe = recipe_of({**pre, "model": model}, exits={"freeze": True}, max_updates=20, log_every=4)
    train(recipe, tmp_path / "second")
    before, after = (load_file(tmp_path / run / "model.safetensors") for run in ("first", "second"))
    new = {name for name in after if name not in before}
    assert any(name.startswith("trained_policy.") for name in new)
    for name, weight in before.items():
        is_of_exit = ".exit_norms." in name
        assert torch.equal(after[name], weight) != is_of_exit, name
    policy_losses = [line["policy_loss"] for line in lines(tmp_path / "second")]
    assert policy_losses[-1] < policy_losses[0]


def test_new_norms_of_exits_begin_as_the_last(translation: dict[str, Any], tmp_path: Path) -> None:
    pre = {**translation, "model": {**translation["model"], "decoder": {**DEEP, "norm": "pre"}}}
    train(recipe_of(pre, max_updates=4), tmp_path / "first")
    recipe = recipe_of({**pre, "model": {"from": str(tmp_path / "first"), "exits": {}}})
    stack = open_task(recipe, tmp_path / "second").new_model().model.decoder.stack
    assert not torch.equal(stack.final_norm.weight, torch.ones(16))
    for norm in stack.exit_norms.values():
        assert torch.equal(norm.weight, stack.final_norm.weight)
        assert torch.equal(norm.bias, stack.final_norm.bias)
    deeper = {"from": str(tmp_path / "first"), "decoder": {"num_layers": 4}}
    with pytest.raises(CheckpointError, match="holds another model"):
        open_task(recipe_of({**pre, "model": deeper}), tmp_path / "third").new_model()


def test_what_no_model_can_learn_is_refused(translation: dict[str, Any], tmp_path: Path) -> None:
    train(recipe_of(translation, max_updates=2), tmp_path / "plain")
    further = {**translation, "model": {"from": str(tmp_path / "plain")}}
    with pytest.raises(ConfigError, match=r"training\.exits  has no effect on a model without exits"):
        open_task(recipe_of(further, exits={}), tmp_path / "other")
    with pytest.raises(ConfigError, match=r"training\.exits\.freeze  leaves nothing to train"):
        open_task(recipe_of(with_exits(translation), exits={"freeze": True}), tmp_path / "other")


@pytest.mark.parametrize("other", ["graphs", "compile"])
def test_scaled_gradients_go_one_by_one(translation: dict[str, Any], tmp_path: Path, other: str) -> None:
    recipe = recipe_of(with_exits(translation), exits={"gradient_scale": 0.5}, **{other: True})
    with pytest.raises(ConfigError, match=f"asks every block twice for gradients, which training.{other} does not"):
        train(recipe, tmp_path / "run")


def test_the_recipe_of_a_run_says_how_exits_were_trained(translation: dict[str, Any], tmp_path: Path) -> None:
    train(recipe_of(with_exits(translation), max_updates=2), tmp_path / "run")
    assert load_recipe(tmp_path / "run" / "recipe.yaml").training.exits is not None
    train(recipe_of(with_exits(translation), max_updates=4), tmp_path / "run")  # the same recipe goes on


def test_the_best_checkpoint_by_what_one_exit_loses(translation: dict[str, Any], tmp_path: Path) -> None:
    chosen = {"select": "best", "metric": "nll_at_2", "validate_every": 4, "max_updates": 12}
    assert train(recipe_of(with_exits(translation), **chosen), tmp_path / "run").best == pytest.approx(
        min(line["valid_nll_at_2"] for line in lines(tmp_path / "run", "valid_nll_at_2"))
    )


# Processes


def test_two_processes_lose_what_one_does(classification: dict[str, Any], tmp_path: Path) -> None:
    """Heads that sit out an update, since a curriculum leaves them out, hold nobody up."""
    options = with_exits(classification, exits={"heads": "separate"}, policy={"kind": "token"})
    rows = {"batch_tokens": None, "batch_rows": 15, "log_every": 1, "max_updates": 5, "validate_every": 5}
    rows["exits"] = {"curriculum": "rotational"}
    train_together(still(options, **rows), tmp_path / "two")
    train(still(options, **rows, accumulate=2), tmp_path / "one")
    two, one = lines(tmp_path / "two"), lines(tmp_path / "one")
    for name in ("nll", "nll_at_1", "loss"):
        assert [line[name] for line in two] == pytest.approx([line[name] for line in one], rel=1e-3)
