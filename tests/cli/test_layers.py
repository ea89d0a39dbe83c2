"""``depthwise layers``: pictures of runs in a folder."""

from pathlib import Path

from ..evaluation.test_layer_figures import latent, short
from .conftest import Depthwise

__all__ = ["latent", "short"]


def test_pictures(latent: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    code, output, errors = depthwise("layers", latent, "--out", tmp_path / "pictures")
    assert code == 0, errors
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {"utilisation.png", "samples.png", "gradients.png", "learning.png", "depths.png", "languages.png"} == names
    assert all((tmp_path / "pictures" / name).read_bytes().startswith(b"\x89PNG") for name in names)
    assert str(tmp_path / "pictures" / "samples.png") in output
    assert "between 0.1 and 0.9" in output


def test_one_side(latent: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    code, output, errors = depthwise("layers", latent, "--side", "encoder", "--out", tmp_path / "pictures")
    assert code == 0, errors
    assert "no gates of the encoder are on record" in output
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["learning.png"]
    code, _, errors = depthwise("layers", latent, "--side", "middle", "--out", tmp_path / "pictures")
    assert code == 2
    assert "encoder" in errors


def test_a_folder_that_is_no_run(depthwise: Depthwise, tmp_path: Path) -> None:
    code, _, errors = depthwise("layers", tmp_path, "--out", tmp_path / "pictures")
    assert code == 1
    assert "name the folder of a run that was trained" in errors


def test_a_log_of_one_line(short: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    code, _, errors = depthwise("layers", short, "--out", tmp_path / "pictures")
    assert (code, errors) == (0, "")
    assert len(list((tmp_path / "pictures").iterdir())) == 6


def test_a_file_is_in_the_way(latent: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    """That is said before there is anything else to say."""
    file = tmp_path / "in.txt"
    file.write_text("mine")
    for out, problem in (
        (file, "is a file; give a folder for the pictures"),
        (file / "x", "cannot be written: Not a directory; give another folder"),
    ):
        assert depthwise("layers", latent, "--out", out) == (1, "", f"error: {out} {problem}\n")
    assert file.read_text() == "mine"


def test_a_picture_that_cannot_be_written(latent: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    (tmp_path / "pictures" / "learning.png").mkdir(parents=True)
    code, _, errors = depthwise("layers", latent, "--side", "encoder", "--out", tmp_path / "pictures")
    assert code == 1
    assert "learning.png cannot be written: Is a directory" in errors


def test_a_damaged_log(latent: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    (latent / "layers.jsonl").write_text("[1]\n")
    problem = f"error: {latent / 'layers.jsonl'}:1: the line says nothing of its update; remove the line, or name "
    assert depthwise("layers", latent, "--out", tmp_path / "pictures") == (1, "", f"{problem}another run\n")
    assert not (tmp_path / "pictures").exists()
