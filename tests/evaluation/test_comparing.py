"""Two runs against each other, and several together."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from depthwise.errors import CheckpointError, DataError
from depthwise.evaluation import comparing, contest, evaluate_run, load_run, opponent, over_runs, read_examples
from depthwise.evaluation.results import write_evaluation

from ..tasks.conftest import multilingual_options
from .conftest import build_run

MakeRun = Callable[..., Path]
GOLD = ("good", "bad", "good", "bad", "good")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders whose models were loaded to predict."""
    folders: list[Path] = []

    def load(folder: Path, *arguments: Any) -> Any:
        folders.append(folder)
        return load_run(folder, *arguments)

    monkeypatch.setattr(comparing, "load_run", load)
    return folders


def test_predictions_on_record_serve_while_they_are_true(make_run: MakeRun, loaded: list[Path], tmp_path: Path) -> None:
    ours, theirs = make_run("translation", 1), make_run("translation", 2)
    run = load_run(ours, device="cpu")
    examples = read_examples(run.task, "test")
    recorded = evaluate_run(load_run(theirs, device="cpu"), "test")

    def ask(**options: Any) -> tuple[str, ...]:
        return opponent(run.task, "test", options.pop("examples", examples), theirs, device="cpu", **options)

    assert ask() == recorded.predictions
    assert loaded == []
    assert ask(changes=["generation.num_beams=1"]) != ()
    assert len(loaded) == 1, "another search"
    assert len(ask(changes=["data.max_source_tokens=2"])) == 5
    assert len(loaded) == 2, "less of every source"
    assert len(ask(examples=examples[:3])) == 3
    assert len(loaded) == 3, "other examples"
    (theirs / "model.safetensors").write_bytes((ours / "model.safetensors").read_bytes())
    assert ask() != recorded.predictions
    assert len(loaded) == 4, "other weights"


def test_predictions_without_a_record_are_made_for_our_examples(make_run: MakeRun, loaded: list[Path]) -> None:
    """Whatever data the other run names."""
    ours, theirs = make_run("classes", 1), make_run("classes", 2)
    recipe = (theirs / "recipe.yaml").read_text()
    (theirs / "recipe.yaml").write_text(recipe.replace("labelled.tsv", "gone.tsv"))
    task = load_run(ours, device="cpu").task
    found = opponent(task, "test", read_examples(task, "test"), theirs, device="cpu")
    assert len(found) == 5
    assert loaded == [theirs]


def test_each_run_is_told_languages_as_it_wants_them(tmp_path: Path) -> None:
    """One whose encoder has gates for each language of the texts, and one that does not ask for it."""
    options = multilingual_options(tmp_path, language_token="none")
    options["data"]["pairs"] = ["yy-en", "xx-en"]
    stack = {**options["model"]["encoder"], "norm": "pre"}
    model = {**options["model"], "encoder": stack, "decoder": stack}
    latent = {"per_language": True, "sides": ["encoder"]}
    plain = build_run(tmp_path / "plain", {**options, "model": model}, 1)
    gated = build_run(tmp_path / "gated", {**options, "model": {**model, "latent": latent}}, 2)
    for ours, theirs in ((plain, gated), (gated, plain)):
        task = load_run(ours, device="cpu").task
        found = opponent(task, "test", read_examples(task, "test"), theirs, device="cpu")
        assert found == evaluate_run(load_run(theirs, device="cpu"), "test").predictions


def test_a_file_of_predictions(make_run: MakeRun, tmp_path: Path) -> None:
    task = load_run(make_run("classes"), device="cpu").task
    examples = read_examples(task, "test")
    path = tmp_path / "theirs.txt"
    path.write_text("good\nbad\nbad\nbad\nbad\n")
    found = contest(task, examples, GOLD, opponent(task, "test", examples, path), str(path))
    assert (found.metric, found.comparison.ours, found.comparison.theirs) == ("accuracy", 100.0, 60.0)
    assert found.comparison.difference == 40.0
    assert found.as_dict()["p_value"] == found.comparison.p_value
    path.write_text("good\n")
    with pytest.raises(DataError, match="there are 1 predictions for 5 examples"):
        opponent(task, "test", examples, path)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("translation", "is a run of translation, not of text_classification; compare runs of the same task"),
        ("doubled", "takes 2 texts at a time, not 1"),
    ],
)
def test_a_run_of_another_kind(make_run: MakeRun, kind: str, message: str) -> None:
    task = load_run(make_run("classes"), device="cpu").task
    with pytest.raises(CheckpointError, match=message):
        opponent(task, "test", read_examples(task, "test"), make_run(kind))


def test_seeds(make_run: MakeRun) -> None:
    folders = [make_run("classes", seed) for seed in (1, 2, 3)]
    runs = [load_run(folder, device="cpu") for folder in folders]
    given = [evaluate_run(run, "test") for run in runs]
    found = [replace(one, metrics={"accuracy": value}) for one, value in zip(given, (50.0, 60.0, 70.0), strict=True)]
    named = [(str(folder), one) for folder, one in zip(folders, found, strict=True)]
    seeds = over_runs(runs[0].task, named)
    assert (seeds.summaries["accuracy"].mean, seeds.summaries["accuracy"].deviation) == (60.0, 10.0)
    assert seeds.best_on_valid is None
    content = seeds.as_dict()
    assert (content["metrics"], content["deviations"]) == ({"accuracy": 60.0}, {"accuracy": 10.0})
    assert (content["mean_depth"], content["examples"], content["num_runs"]) == (2.0, 5, 3)
    assert content["seconds"] == pytest.approx(sum(one.seconds for one in found))
    assert list(content["runs"]) == [str(folder) for folder in folders]

    for folder, one, value in zip(folders, found, (1.0, 3.0, 2.0), strict=True):
        write_evaluation(folder, replace(one, split="valid", metrics={"accuracy": value}))
    assert over_runs(runs[0].task, named).best_on_valid == str(folders[1])
    stale = replace(found[2], split="valid", weights_digest="older")
    write_evaluation(folders[2], stale)
    assert over_runs(runs[0].task, named).best_on_valid is None, "a validation of other weights says nothing"


def test_seeds_of_different_things(make_run: MakeRun) -> None:
    run = load_run(make_run("classes"), device="cpu")
    found = evaluate_run(run, "test")
    with pytest.raises(DataError, match=r"b was evaluated on other examples than a; name the same .* data.test=FILE"):
        over_runs(run.task, [("a", found), ("b", replace(found, examples_digest="other"))])
    with pytest.raises(CheckpointError, match="b is a run of translation, but a of text_classification"):
        over_runs(run.task, [("a", found), ("b", replace(found, task="translation"))])
