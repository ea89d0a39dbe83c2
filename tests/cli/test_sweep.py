"""``depthwise sweep``: what it prints and writes, and its mistakes."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from depthwise.cli.sweep import frontier_table
from depthwise.evaluation import Frontier, Point, evaluating, frontier

MakeRun = Callable[..., Path]
Depthwise = Callable[..., tuple[int, str, str]]


def test_the_table_and_the_files(make_run: MakeRun, depthwise: Depthwise) -> None:
    folder, shallow = make_run("leaving classes"), make_run("classes")
    code, output, errors = depthwise("sweep", folder, "--limit", 4, "--batch-rows", 1, "--beside", shallow)
    assert (code, errors) == (0, "")
    content = json.loads((folder / "results" / "frontier.json").read_text())
    assert (content["split"], content["examples"], content["batch_rows"]) == ("valid", 4, 1)
    lines = output.splitlines()
    assert lines[0].startswith(f"{folder}, valid: 4 examples, 1 at a time on ")
    for word in ("accuracy", "depth", "token-layers", "GFLOPs", "seconds"):
        assert word in output
    assert "fixed 4 (full model)" in output
    assert "confidence saturation 0.95" in output
    assert len(content["points"]) == 4 + 5 + 5 + 2 + 1
    assert lines[-1].startswith(f"the numbers are in {folder / 'results' / 'frontier.json'}, their plot in ")
    assert (folder / "results" / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_a_policy_by_name(make_run: MakeRun, depthwise: Depthwise) -> None:
    """It is tried beside what a sweep tries anyway, with the options that are given."""
    folder = make_run("leaving classes")
    for changes, setting in ((["policy.kind=uniform"], {}), (["policy.kind=uniform", "policy.seed=3"], {"seed": 3})):
        code, output, errors = depthwise("sweep", folder, "--limit", 4, *changes)
        assert (code, errors) == (0, "")
        points = json.loads((folder / "results" / "frontier.json").read_text())["points"]
        assert len(points) == 4 + 5 + 5 + 2 + 1
        assert (points[-1]["policy"], points[-1]["setting"]) == ("uniform", setting)
        assert any(line.startswith(" ".join(["uniform", *map(str, setting.values())])) for line in output.splitlines())
    code, _, errors = depthwise("sweep", folder, "policy.kind=confidence")
    assert (code, "policy.threshold  required but missing" in errors) == (1, True)


def test_columns() -> None:
    """Narrow enough for a terminal."""
    measured = {
        "quality": 12.3456,
        "mean_depth": 1.25,
        "token_layers": 1234567,
        "flops": 123_456_789_012,
        "seconds": 9.5,
    }
    points = [
        Point(policy="fixed", setting={"depth": 2}, **measured),
        Point(policy="confidence", setting={"measure": "saturation", "threshold": 0.9}, **measured),
        Point(policy="separate", setting={"run": "runs/two", "depth": 2}, **{**measured, "quality": None}),
    ]
    facts = {"task": "translation", "split": "valid", "metric": "sacrebleu", "higher_is_better": True, "num_layers": 2}
    more = {"exits": (1, 2), "examples": 5, "batch_rows": None, "settings": {}, "hardware": "abacus"}
    digests = {"examples_digest": "e", "weights_digest": "w"}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(frontier_table(Frontier(**facts, **more, **digests, points=tuple(points))))
    rows = [line.split() for line in console.export_text().splitlines()]
    numbers = ["1.25", "1,234,567", "123.457", "9.50"]
    assert ["fixed", "2", "(full", "model)", "12.35", *numbers] in rows
    assert ["confidence", "saturation", "0.9", "12.35", *numbers] in rows
    assert ["separate", "runs/two", "2", "not", "finite", *numbers] in rows


def test_columns_of_ones_own_by_depth() -> None:
    def point(policy: str, mean_depth: float | None, **setting: object) -> Point:
        measured = {"quality": 1.0, "token_layers": 1, "flops": 1, "seconds": 1.5}
        return Point(policy=policy, setting=setting, mean_depth=mean_depth, **measured)

    points = point("fixed", 1.0, depth=1), point("fixed", 2.0, depth=2), point("patience", 1.5, patience=1)
    facts = {"task": "translation", "split": "valid", "metric": "sacrebleu", "higher_is_better": True, "num_layers": 2}
    more = {"exits": (1, 2), "examples": 5, "batch_rows": None, "settings": {}, "hardware": "abacus"}
    frontier = Frontier(**facts, **more, examples_digest="e", weights_digest="w", points=points)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(frontier_table(frontier, {"time": lambda point: f"{point.seconds} s"}, by_depth=True))
    assert [line.split() for line in console.export_text().splitlines()] == [
        ["policy", "time"],
        ["fixed", "1", "1.5", "s"],
        ["patience", "1", "1.5", "s"],
        ["fixed", "2", "(full", "model)", "1.5", "s"],
    ]


def test_fixed_points_are_what_evaluate_says(make_run: MakeRun, depthwise: Depthwise) -> None:
    folder = make_run("leaving tags")
    assert depthwise("sweep", folder, "--split", "test")[0] == 0
    content = json.loads((folder / "results" / "frontier.json").read_text())
    for depth in (1, 2, 3, 4):
        _, output, _ = depthwise("evaluate", folder, "--depth", depth, "--json")
        found, point = json.loads(output), content["points"][depth - 1]
        assert (point["policy"], point["setting"]) == ("fixed", {"depth": depth})
        assert point["quality"] == found["metrics"][content["metric"]]
        assert all(point[name] == found[name] for name in ("mean_depth", "token_layers", "flops"))


@pytest.mark.parametrize("stage", ["running", "writing"])
def test_an_interruption_leaves_no_half_file(
    make_run: MakeRun, depthwise: Depthwise, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    folder, calls = make_run("leaving tags"), []
    (folder / "results").mkdir()
    (folder / "results" / "frontier.json").write_text("before")

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return evaluating.outcome_of(*arguments, **options)

    if stage == "running":
        monkeypatch.setattr(frontier, "outcome_of", interrupted)
    else:
        monkeypatch.setattr("os.fsync", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    code, _, errors = depthwise("sweep", folder)
    assert code in (1, 130)
    assert "Traceback" not in errors
    assert [path.name for path in (folder / "results").iterdir()] == ["frontier.json"]
    assert (folder / "results" / "frontier.json").read_text() == "before"


def test_mistakes(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    plain, leaving = make_run("classes"), make_run("leaving classes")
    for arguments, message in {
        (plain,): "has no exits to leave at, so that there is nothing to sweep; train a run with model.exits",
        (leaving, "--beside", tmp_path / "none"): "none is no folder; give the folder of a run",
        (leaving, "--beside", make_run("translation")): "is a run of translation, not of text_classification",
        (leaving, "generaton.num_beams=1"): "generaton  unknown option; did you mean generation?",
        (tmp_path / "none",): "none is no folder; give the folder of a run",
    }.items():
        code, output, errors = depthwise("sweep", *arguments)
        assert (code, output) == (1, ""), arguments
        assert message in errors
        assert "Traceback" not in errors
    assert not (leaving / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data.test=x"], "name the folder of one run; others go behind --beside"),
        (["a", "b"], "name the folder of one run; others go behind --beside"),
        (["a", "--limit", "0"], "Invalid value for '--limit'"),
        (["a", "--batch-rows", "0"], "Invalid value for '--batch-rows'"),
    ],
)
def test_wrong_usage(depthwise: Depthwise, arguments: list[str], message: str) -> None:
    code, _, errors = depthwise("sweep", *arguments)
    assert code == 2
    assert message in " ".join(errors.replace("│", " ").split())
