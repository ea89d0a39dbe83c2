"""``depthwise depths``, and what other commands say of runs whose words have depths."""

from pathlib import Path

import pytest

from depthwise.evaluation import open_run
from depthwise.evaluation.word_depths import table_of

from ..evaluation.test_word_depths import LAYERS, word_run
from .conftest import Depthwise, MakeRun
from .test_predict import feed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return word_run(tmp_path)


def rows_of(output: str) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in map(str.split, output.splitlines()) if row}


def test_words(folder: Path, depthwise: Depthwise) -> None:
    code, output, _ = depthwise("depths", folder, "--words", "a, b,nobody")
    assert code == 0
    table, rows = table_of(open_run(folder), folder), rows_of(output)
    place = table.place_of("a")
    assert place is not None
    assert table.information is not None
    assert rows["a"] == [str(table.depth_of("a")), f"{table.information[place]:.3g}", "3"]
    assert rows["nobody"] == [str(table.unseen_depth), "never", "seen", "0"]
    assert "c" not in rows
    assert "3 words of 5 documents by mutual_information, min " in output
    assert (folder / "results" / "word-depths.png").is_file()


def test_histogram_and_the_most_telling(tmp_path: Path, depthwise: Depthwise) -> None:
    folder = word_run(tmp_path, estimator="frequency")
    code, output, _ = depthwise("depths", folder)
    rows, table = rows_of(output), table_of(open_run(folder), folder)
    assert code == 0
    counts = [int(rows[str(depth)][0]) for depth in range(1, LAYERS + 1)]
    assert counts == table.histogram().tolist()
    assert {"a", "b", "c"} <= rows.keys()
    assert rows["a"][1] == "-"


def test_a_run_without(make_run: MakeRun, depthwise: Depthwise) -> None:
    code, _, errors = depthwise("depths", make_run("classes"))
    assert code == 1
    assert "have no depths of their own; train a run with model.word_depths={}" in errors


def test_predictions_with_words(folder: Path, depthwise: Depthwise, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"a b\n\n")
    code, output, _ = depthwise("predict", folder, "--depths", "--device", "cpu")
    table = table_of(open_run(folder), folder)
    assert code == 0
    assert output.split("\n")[0].split("\t")[1] == f"a:{table.depth_of('a')} b:{table.depth_of('b')}"
    feed(monkeypatch, b"a b\n")
    _, output, _ = depthwise("predict", folder, "--depths", "--device", "cpu", "--depth", "full")
    assert output.split("\n")[0].split("\t")[1] == " ".join([str(LAYERS)] * 3)


def test_evaluation_says_who_decides(folder: Path, depthwise: Depthwise) -> None:
    code, output, _ = depthwise("evaluate", folder, "--device", "cpu")
    assert code == 0
    assert "mutual_information" in output
    _, output, _ = depthwise("evaluate", folder, "--device", "cpu", "--depth", "full")
    assert "mutual_information" not in output
    assert f"{LAYERS:.2f}" in output
