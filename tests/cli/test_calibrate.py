"""``depthwise calibrate``: what it prints and keeps, that other commands take it, and its mistakes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

MakeRun = Callable[..., Path]
Depthwise = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(make_run: MakeRun, tmp_path: Path) -> Path:
    """A run whose validation data has 40 examples."""
    folder = make_run("leaving classes")
    lines = ["good\ta b", "bad\tb c c", "good\ta a c", "bad\tc"] * 10
    (tmp_path / "more.tsv").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_a_budget(folder: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    code, output, errors = depthwise(
        "calibrate", folder, f"data.valid={tmp_path / 'more.tsv'}", "--depth-budget", 2.5, "--vectors", 2
    )
    assert (code, errors) == (0, "")
    kept = json.loads((folder / "calibration.json").read_text())["settings"]["depth-2.5"]
    assert kept["budget_met"] is True
    assert kept["mean_depth"] <= 2.5
    assert f"{folder}, valid: 40 examples" in output
    assert "the goal is met: at most 2.5 blocks in the mean" in output
    assert f"use it: depthwise evaluate {folder} --depth depth-2.5" in output
    code, output, errors = depthwise("evaluate", folder, "--depth", "depth-2.5", "--json")
    assert code == 0
    assert json.loads(output)["settings"]["policy"] == kept["policy"]
    (tmp_path / "input.txt").write_text("a b\n")
    code, output, errors = depthwise("predict", folder, tmp_path / "input.txt", "--depth", "depth-2.5")
    assert (code, len(output.splitlines())) == (0, 1), errors


def test_a_drop_that_one_can_be_sure_of(folder: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    code, output, errors = depthwise(
        "calibrate", folder, f"data.valid={tmp_path / 'more.tsv'}", "--quality-drop", 100, "--sure"
    )
    assert (code, errors) == (0, "")
    kept = json.loads((folder / "calibration.json").read_text())["settings"]["drop-100-sure"]
    assert (kept["budget_met"], kept["goal"]) == (True, {"quality_drop": 100.0, "sure": True})
    assert "the goal is met: at most 100 lost, also at the lower end of the 95 % interval" in output
    code, _, errors = depthwise("report", folder, "-o", tmp_path / "report.html")
    assert code == 0, errors
    page = (tmp_path / "report.html").read_text()
    assert "surely lose at most 100 accuracy" in page
    assert "--quality-drop 100 --sure --name drop-100-sure" in page


def test_a_drop_against_another_run(folder: Path, make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    """What is good enough is decided by the other run, and said so."""
    other, data = make_run("classes"), f"data.valid={tmp_path / 'more.tsv'}"
    arguments = ["--quality-drop", 100, "--beside", other, "--name", "beside"]
    code, output, errors = depthwise("calibrate", folder, data, *arguments)
    assert (code, errors) == (0, "")
    kept = json.loads((folder / "calibration.json").read_text())["settings"]["beside"]
    assert (kept["budget_met"], kept["goal"]) == (True, {"quality_drop": 100.0, "beside": str(other)})
    assert f"{other}: accuracy " in output
    assert f"the goal is met: at most 100 lost against {other}" in output
    code, _, errors = depthwise("report", folder, "-o", tmp_path / "report.html")
    assert code == 0, errors
    page = (tmp_path / "report.html").read_text()
    assert f"lose at most 100 accuracy against {other}" in page
    assert f"--quality-drop 100 --beside {other}" in page


def test_a_promise_by_one_policy(folder: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    data = f"data.valid={tmp_path / 'more.tsv'}"
    arguments = ["--risk", 0.6, "--confidence", 0.3, "--name", "careful", "policy.kind=confidence"]
    code, output, errors = depthwise("calibrate", folder, data, *arguments, "policy.measure=saturation")
    assert (code, errors) == (0, "")
    kept = json.loads((folder / "calibration.json").read_text())["settings"]["careful"]
    assert kept["policy"]["measure"] == "saturation"
    assert kept["goal"]["risk"] == 0.6
    assert "mean loss" in output


def test_a_goal_that_is_missed(folder: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    """Nobody leaves so early by saturation, which needs two exits."""
    data = f"data.valid={tmp_path / 'more.tsv'}"
    policy = ["policy.kind=confidence", "policy.measure=saturation"]
    code, output, _ = depthwise("calibrate", folder, data, "--depth-budget", 1.5, *policy)
    assert code == 0
    assert "the goal was NOT met (at most 1.5 blocks in the mean); this is the setting that comes closest" in output
    assert json.loads((folder / "calibration.json").read_text())["settings"]["depth-1.5"]["budget_met"] is False


def test_mistakes(folder: Path, depthwise: Depthwise) -> None:
    for arguments, message in {
        (folder,): "say what to calibrate for: a quality drop, a depth budget or a risk",
        (folder, "--risk", 0.1, "--beside", folder): "what is lost beside another run is quality; give a quality drop",
        (folder, "--quality-drop", 1): "5 examples are too few to calibrate on",
        (folder, "--quality-drop", 1, "--name", "full"): 'a setting cannot be called "full"',
        (folder, "--risk", 0.1, "--confidence", 0.9): "write --confidence 0.05",
    }.items():
        code, _, errors = depthwise("calibrate", *arguments)
        assert code == 1
        assert message in errors
    assert not (folder / "calibration.json").exists()
    code, _, errors = depthwise("evaluate", folder, "--depth", "fast")
    assert code == 1
    assert 'has no calibrated setting "fast"' in errors


@pytest.mark.parametrize("measure", ["max_probability", "margin", "entropy", "normalized_entropy", "saturation"])
def test_every_measure(folder: Path, depthwise: Depthwise, tmp_path: Path, measure: str) -> None:
    data = f"data.valid={tmp_path / 'more.tsv'}"
    policy = ["policy.kind=confidence", f"policy.measure={measure}"]
    code, _, errors = depthwise("calibrate", folder, data, "--depth-budget", 3.5, *policy, "--vectors", 1)
    assert (code, errors) == (0, "")
    code, _, errors = depthwise("evaluate", folder, "--depth", "depth-3.5")
    assert (code, errors) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quality-drop", 1, "policy.threshold=0.5"], "leave policy.threshold out"),
        (["--risk", 0.3, "--temperatures"], "would break it"),
    ],
)
def test_wrong_usage(folder: Path, depthwise: Depthwise, arguments: list[object], message: str) -> None:
    code, _, errors = depthwise("calibrate", folder, *arguments)
    assert code == 2
    assert message in " ".join(errors.replace("│", " ").split())
