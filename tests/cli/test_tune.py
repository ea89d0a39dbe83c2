"""``depthwise tune``: what is chosen, and that it is written."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from transformers import GenerationConfig

from depthwise.cli import tune
from depthwise.config import load_recipe
from depthwise.evaluation import load_run, predict_all, tuning

from ..evaluation.conftest import build_run
from ..tasks.conftest import multilingual_options

MakeRun = Callable[..., Path]
Depthwise = Callable[..., tuple[int, str, str]]


def with_checkpoints(folder: Path, *others: Path) -> Path:
    """The run with the weights of other runs as its checkpoints."""
    for number, other in enumerate(others, start=1):
        checkpoint = folder / f"checkpoint-{10 * number}"
        checkpoint.mkdir()
        shutil.copy(other / "model.safetensors", checkpoint)
    return folder


def test_a_translation(
    make_run: MakeRun, depthwise: Depthwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """References that only the search with another limit finds."""
    monkeypatch.setattr(tuning.tune_search, "__defaults__", ((1.5,), ((1.0, 6), (1.0, 9))))
    folder, data = make_run("translation", seed=2), tmp_path / "valid.tsv"
    sources = ["a b c", "b", "c a"]
    wanted = predict_all(load_run(folder, ["generation.max_extra=6"], device="cpu"), [(text,) for text in sources])
    pairs = [(source, found.text) for source, found in zip(sources, wanted, strict=True) if found.text]
    data.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    changes = [f"data.valid={data}", "evaluation.metrics=[exact_match]"]
    code, output, errors = depthwise("tune", folder, *changes)
    assert (code, errors) == (0, "")
    assert f"exact_match on valid: 0.00 before, 100.00 now; the choice is in {folder}" in output
    content = json.loads((folder / "results" / "tune.json").read_text())
    assert (content["metric"], content["examples"], content["split"]) == ("exact_match", len(pairs), "valid")
    assert content["checkpoints"] == [{"count": None, "value": 0.0}]
    assert len(content["search"]) == 6
    assert content["chosen_search"]["max_extra"] == 6

    recipe = load_recipe(folder / "recipe.yaml")
    assert asdict(recipe.generation) == content["chosen_search"]
    assert recipe.evaluation.metrics is None, "a change for this command only"
    config = GenerationConfig.from_pretrained(folder)
    assert (config.num_beams, config.length_penalty) == (2, content["chosen_search"]["length_penalty"])
    _, output, _ = depthwise("evaluate", folder, "--split", "valid", "--json", *changes)
    assert json.loads(output)["metrics"]["exact_match"] == 100.0
    assert not list(folder.glob(".tune-*"))


def test_languages_that_it_was_chosen_on_are_no_part_of_the_choice(
    depthwise: Depthwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning.tune_search, "__defaults__", ((1.5,), ((1.0, 6),)))
    folder = build_run(tmp_path / "run", multilingual_options(tmp_path), 1)
    code, _, errors = depthwise("tune", folder, "generation.target=yy", "data.pairs=[en-yy]")
    assert (code, errors) == (0, "")
    assert load_recipe(folder / "recipe.yaml").generation.target is None
    assert depthwise("evaluate", folder)[0] == 0


def test_checkpoints_of_a_classifier(make_run: MakeRun, depthwise: Depthwise, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean that validation prefers becomes the model, byte for byte."""
    others = [make_run("classes", seed) for seed in (2, 3)]
    folder = with_checkpoints(make_run("classes", 1), *others)
    values = iter([10.0, 20.0, 15.0])
    monkeypatch.setattr("depthwise.evaluation.tuning.score_model", lambda *arguments: next(values))
    recipe = (folder / "recipe.yaml").read_text()
    (folder / "checkpoint-best").mkdir()  # somebody's own
    code, output, _ = depthwise("tune", folder)
    assert code == 0
    assert "accuracy on valid: 10.00 before, 20.00 now" in output
    assert (folder / "model.safetensors").read_bytes() == (others[1] / "model.safetensors").read_bytes()
    content = json.loads((folder / "results" / "tune.json").read_text())
    assert content["chosen_checkpoints"] == 1
    assert [trial["count"] for trial in content["checkpoints"]] == [None, 1, 2]
    assert content["chosen_search"] is None
    assert (folder / "recipe.yaml").read_text() == recipe


def test_what_is_as_good_as_before_stays(
    make_run: MakeRun, depthwise: Depthwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_checkpoints(make_run("classes", 1), make_run("classes", 2))
    before = (folder / "model.safetensors").read_bytes()
    monkeypatch.setattr("depthwise.evaluation.tuning.score_model", lambda *arguments: 10.0)
    assert depthwise("tune", folder)[0] == 0
    assert (folder / "model.safetensors").read_bytes() == before
    assert json.loads((folder / "results" / "tune.json").read_text())["chosen_checkpoints"] is None


def test_mistakes(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    folder = with_checkpoints(make_run("classes", 1), make_run("classes", 2))
    (folder / "checkpoint-10" / "model.safetensors").write_bytes(b"damaged")
    code, _, errors = depthwise("tune", folder)
    assert code == 1
    assert f"{folder / 'checkpoint-10' / 'model.safetensors'} cannot be read as safetensors" in errors
    assert not list(folder.glob(".tune-*"))
    code, _, errors = depthwise("tune", folder, f"data.valid={tmp_path / 'none.tsv'}")
    assert (code, "none.tsv does not exist" in errors) == (1, True)
    assert depthwise("tune", folder, folder)[0] == 2


def test_a_full_disk(make_run: MakeRun, depthwise: Depthwise, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run("classes", 1)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tune.tempfile, "TemporaryDirectory", full)
    code, _, errors = depthwise("tune", folder)
    assert code == 1
    assert f"{folder} cannot be written to: No space left on device; make room and start again" in errors


def test_an_imported_run_gets_a_recipe(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    """One without recipe.yaml, as conversion leaves it."""
    folder = make_run("translation")
    data = load_recipe(folder / "recipe.yaml").data.valid
    assert data is not None
    (folder / "recipe.yaml").unlink()
    (folder / "generation_config.json").unlink()
    code, _, errors = depthwise("tune", folder, f"data.valid={data[0]}", "generation.num_beams=1")
    assert (code, errors) == (0, "")
    assert load_recipe(folder / "recipe.yaml").generation.num_beams == 1
    config = json.loads((folder / "generation_config.json").read_text())
    assert (config["num_beams"], config["decoder_start_token_id"], config["eos_token_id"]) == (1, 2, 2)
    assert "length_penalty" not in config
    assert depthwise("evaluate", folder, f"data.test={data[0]}")[0] == 0
