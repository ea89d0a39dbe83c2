"""``benchmarks/curves.py``: which point of a curve is the best, and what is said of runs without one."""

import json
from pathlib import Path

import pytest

from depthwise.errors import InputError

from .scripts import loaded

curves = loaded("benchmarks/curves.py")


def run_folder(folder: Path, values: dict[int, float], metric: str) -> Path:
    folder.mkdir()
    lines = [{"update": update, "epoch": 1.0, f"valid_{metric}": value} for update, value in values.items()]
    lines.insert(1, {"update": 7, "epoch": 0.5, metric: 0.0})  # of training
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_curves_are_those_of_validation_data(tmp_path: Path) -> None:
    one = run_folder(tmp_path / "one", {10: 3.0, 20: 2.0, 30: 2.5}, "nll")
    two = run_folder(tmp_path / "two", {10: 4.0}, "nll")
    assert curves.curves_of([one, two], "nll") == {"one": [(10, 3.0), (20, 2.0), (30, 2.5)], "two": [(10, 4.0)]}


@pytest.mark.parametrize(("higher", "best"), [(False, (20, 2.0)), (True, (10, 3.0))])
def test_the_earliest_of_the_best_counts(higher: bool, best: tuple[int, float]) -> None:
    assert curves.best_of([(10, 3.0), (20, 2.0), (30, 2.0), (40, 3.0)], higher=higher) == best


@pytest.mark.parametrize("higher", [False, True])
def test_the_best_point_is_in_the_picture(higher: bool) -> None:
    figure = curves.figure_of({"one": [(10, 90.0), (20, 2.0), (30, 3.0)]}, "metric", higher=higher)
    low, high = figure.axes[0].get_ylim()
    assert low < (90.0 if higher else 2.0) < high


def test_a_metric_that_was_not_logged_is_named_with_those_that_were(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", {10: 3.0}, "nll")
    with pytest.raises(InputError, match="logged no bleu on validation data, but nll; choose with --metric"):
        curves.curves_of([folder], "bleu")


def test_lines_that_cannot_be_read_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "run", {10: 3.0}, "nll")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"update": 20, "valid_nll": 2.')
    assert curves.curves_of([folder], "nll") == {"run": [(10, 3.0)]}
    assert "1 of its lines cannot be read and were left out" in capsys.readouterr().err
    (folder / "metrics.jsonl").write_text("{")
    with pytest.raises(InputError, match=r"logged nothing on validation data; name a run trained with data\.valid"):
        curves.curves_of([folder], "nll")
