"""Whatever a folder holds, reading it ends in what is there and in sentences about what is not."""

import json
from pathlib import Path

import pytest

from depthwise.errors import InputError
from depthwise.report import read_run, read_runs

from .conftest import MakeFolder, frontier, point


def missing(folder: Path) -> str:
    return " | ".join(read_run(folder, "run").missing)


def test_a_whole_run_lacks_nothing(make_folder: MakeFolder) -> None:
    run = read_run(make_folder(), "run")
    assert run.missing == []
    assert run.num_layers == 4
    assert run.command == f"depthwise train start/translate seed=1 --out {run.folder}"
    assert (list(run.frontiers), list(run.evaluations), list(run.settings)) == (["frontier"], ["test"], ["drop-0.5"])
    assert [line["update"] for line in run.metrics] == [100, 200, 300, 300]
    assert len(run.layers) == 3
    assert run.depths["setting"] == "confidence 0.9"


def test_an_empty_folder(tmp_path: Path) -> None:
    (told,) = read_run(tmp_path, "run").missing
    assert told == f"{tmp_path} holds nothing of a run; train one there, or name another folder"


def test_what_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere is no folder; name the folders of runs"):
        read_runs([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("recipe.yaml", "how it was trained is not known"),
        ("training.json", "the training has not ended"),
        ("metrics.jsonl", "there are no learning curves"),
        ("config.json", "the sizes of the model are not known"),
        ("results/frontier.json", "there is no frontier; measure one: depthwise sweep"),
        ("results/test.json", "there are no evaluations; make one: depthwise evaluate"),
    ],
)
def test_a_file_that_is_not_there(make_folder: MakeFolder, file: str, told: str) -> None:
    assert told in missing(make_folder(**{file: None}))


def test_a_model_without_exits_has_no_frontier(make_folder: MakeFolder) -> None:
    folder = make_folder(**{"results/frontier.json": None, "config.json": '{"exits": null}'})
    assert "the model has no exits to leave at" in missing(folder)


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("training.json", '{"num_updates": 3', "training.json is no JSON, or only a part of it"),
        ("recipe.yaml", "a: [", "recipe.yaml is no YAML"),
        ("metrics.jsonl", '{"update": 1}\n{"update": 2, "n', "1 of its lines cannot be read and were left out"),
        ("results/frontier.json", '{"schema": 2}', "has the schema 2, not 1; sweep the run again"),
        ("results/frontier.json", '{"schema": 1}', "says nothing of task"),
        ("results/frontier.json", json.dumps(frontier({"policy": "fixed"})), "point without a policy and its setting"),
        (
            "results/frontier.json",
            json.dumps(frontier(point("fixed", "much", 1.0, 1, 1.0, depth=1))),  # type: ignore[arg-type]
            "a point whose quality is no number, number 1",
        ),
        ("calibration.json", "[]", "calibration.json cannot be read"),
    ],
)
def test_a_file_that_is_damaged(make_folder: MakeFolder, file: str, text: str, told: str) -> None:
    assert told in missing(make_folder(**{file: text}))


def test_files_of_other_kinds_are_no_evaluations(make_folder: MakeFolder) -> None:
    run = read_run(make_folder(**{"results/other.json": '["a list"]', "results/more.json": '{"metrics": 3}'}), "run")
    assert list(run.evaluations) == ["test"]


def test_numbers_that_json_does_not_have(make_folder: MakeFolder) -> None:
    run = read_run(make_folder(**{"metrics.jsonl": '{"update": 1, "nll": NaN}\n'}), "run")
    assert run.metrics == [{"update": 1, "nll": None}]


def test_names_tell_runs_apart(make_folder: MakeFolder, tmp_path: Path) -> None:
    folders = [make_folder("one/run"), make_folder("two/run"), tmp_path / "one" / ".." / "one" / "run"]
    assert [run.name for run in read_runs(folders)] == ["one/run", "two/run"]
    assert [run.name for run in read_runs(folders[:1])] == ["run"]
