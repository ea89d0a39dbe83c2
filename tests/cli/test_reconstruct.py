"""``depthwise reconstruct``: words of any text with their depths."""

from pathlib import Path

import pytest

from ..tasks.test_reconstruction import LAYERS, masked_run
from .conftest import Depthwise


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    return masked_run(tmp_path / "masked", "a great film\nso terrible .\n" * 4)


def test_words_of_a_file(masked: Path, tmp_path: Path, depthwise: Depthwise) -> None:
    (tmp_path / "plain.txt").write_text("A great film.\n\nso terrible\n")
    (tmp_path / "labelled.tsv").write_text("x\tA great film.\ny\t\nx\tso terrible\n")
    code, plain, notes = depthwise("reconstruct", masked, tmp_path / "plain.txt", "--cache", tmp_path / "cache")
    assert code == 0
    lines = plain.split("\n")
    assert [pair.split(":")[0] for pair in lines[0].split()] == ["A", "great", "film", "."]
    assert lines[1] == ""
    assert {int(pair.split(":")[1]) for line in lines for pair in line.split()} <= set(range(1, LAYERS + 1))
    assert "6 words run " in notes
    labelled = ("reconstruct", masked, tmp_path / "labelled.tsv", "--labelled", "--cache", tmp_path / "cache")
    assert depthwise(*labelled)[1] == plain
    dear = depthwise(*labelled, "--penalty", "100")[1]
    assert dear.split("\n")[2] == "so:1 terrible:1"
    assert depthwise(*labelled, "--words", "blanks")[1].split()[2].startswith("film.:")


def test_what_cannot_be_done(masked: Path, tmp_path: Path, depthwise: Depthwise) -> None:
    (tmp_path / "plain.txt").write_text("a great film\n")
    code, _, errors = depthwise("reconstruct", masked, tmp_path / "plain.txt", "--labelled", "--cache", tmp_path)
    assert code == 1
    assert "plain.txt:1: there is no label<tab>text; leave --labelled out, or mend the line" in errors
    assert "does not exist or is no file" in depthwise("reconstruct", masked, tmp_path / "nothing")[2]
    assert depthwise("reconstruct", masked, tmp_path / "plain.txt", "--words", "letters")[0] == 2
    assert "is no folder" in depthwise("reconstruct", tmp_path / "nowhere", tmp_path / "plain.txt")[2]
