"""``depthwise layers``: pictures of runs in a folder."""

from pathlib import Path

from ..evaluation.test_layer_figures import latent
from .conftest import Depthwise

__all__ = ["latent"]


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
