"""``depthwise report``: what it prints and writes, and its mistakes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import Depthwise, MakeRun


def data_of(path: Path) -> dict[str, Any]:
    """What a page was made of."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), flags=re.DOTALL)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content


def test_a_page_of_a_run(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    folder, page = make_run("leaving translation"), tmp_path / "out" / "page.html"
    depthwise("sweep", folder, "--limit", 2)
    code, output, errors = depthwise("report", folder, "-o", page, "--samples", 3)
    assert (code, errors) == (0, "")
    assert re.search(rf"the page of 1 run is {page} \(0\.\d MB\); open it in a browser", output)
    lines = output.splitlines()
    assert lines[0] == f"running the first 3 test inputs of {folder}"
    assert lines[1].startswith("Saves")
    content = data_of(page)
    (run,) = content["runs"]
    assert run["depths"]["examples"] == 3
    assert (folder / "results" / "depths.json").is_file()
    points = json.loads((folder / "results" / "frontier.json").read_text())["points"]
    assert len(content["frontiers"][0]["points"]) == len(points)


def test_files_only(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, output, errors = depthwise("report", make_run("leaving classes"), make_run("classes"), "--samples", 0)
    assert (code, errors) == (0, "")
    assert "the page of 2 runs is report.html" in output
    assert "missing in it, which it names" in output
    content = data_of(Path("report.html"))
    assert [run["depths"] for run in content["runs"]] == [None, None]
    assert any("--samples 100" in told for told in content["runs"][0]["missing"])


def test_a_setting_of_my_own(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    page, policy = tmp_path / "page.html", ("policy.kind=patience", "policy.patience=1")
    depthwise("report", make_run("leaving tags"), "-o", page, "--samples", 2, "--depth", "policy", *policy)
    assert data_of(page)["runs"][0]["depths"]["setting"] == "patience 1"
    depthwise("report", tmp_path / "leaving tags-1", "-o", page, "--samples", 2, "--depth", "trained")
    assert data_of(page)["runs"][0]["depths"]["setting"] == "as trained, without a policy"


def test_an_empty_folder(depthwise: Depthwise, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, output, _ = depthwise("report", tmp_path / "empty", "-o", tmp_path / "page.html")
    assert code == 0
    assert "Nothing has been measured here yet" in output
    assert "1 thing is missing in it, which it names" in output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 1, "nowhere is no folder; name the folders of runs"),
        (["policy.kind=patience"], 2, "name the folder of a run"),
        ([".", "data.test=x"], 2, "data.test=x is none of a policy's options"),
        ([".", "policy.kind=patience"], 2, "says nothing without --depth policy"),
        ([".", "--depth", "-3"], 2, "neither trained, full, policy"),
        ([".", "--samples", "-1"], 2, "--samples"),
    ],
)
def test_mistakes(
    depthwise: Depthwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    found, _, errors = depthwise("report", *arguments)
    assert found == code
    assert message in re.sub(r"[\s│]+", " ", errors)
    assert not Path("report.html").exists()


def test_a_page_that_cannot_be_written(depthwise: Depthwise, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, errors = depthwise("report", tmp_path, "-o", tmp_path / "file" / "page.html")
    assert code == 1
    assert "cannot be written" in errors
