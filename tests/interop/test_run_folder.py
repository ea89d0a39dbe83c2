"""Runs that are there whole or not at all; the importers' own tests cover the rest."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from depthwise.errors import CheckpointError
from depthwise.interop.run_folder import check_destination, written_at


def test_weights_that_cannot_be_written(tmp_path: Path) -> None:
    """Safetensors has an error of its own for a disk that is full or gone."""
    run = tmp_path / "run"
    with pytest.raises(CheckpointError, match=rf"^{run} cannot be written: .*No such file.*; give another folder$"):  # noqa: SIM117
        with written_at(run) as folder:
            save_file({"weight": torch.ones(2)}, folder / "absent" / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content"), [("config.json", '{"model_type": "depthwise"}'), ("recipe.given.yaml", "seed: 1\n")]
)
def test_a_run_is_replaced_if_that_is_wanted(tmp_path: Path, name: str, content: str) -> None:
    """A training that was stopped has no more than the recipe that was given."""
    run = tmp_path / "run"
    run.mkdir()
    (run / name).write_text(content)
    check_destination(run, tmp_path / "theirs", force=True)
    with pytest.raises(CheckpointError, match=f"^{run} is not empty; give another folder, or --force to replace it$"):
        check_destination(run, tmp_path / "theirs", force=False)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.tsv", b""),
        ("recipe.yaml", b"seed: 1\n"),
        ("config.json", b""),
        ("config.json", b"\xff"),
        ("config.json", b"[" * 100_000),
        ("config.json", b'["model_type", "depthwise"]'),
        ("config.json", b'{"port": 80}'),
        ("config.json", b'{"model_type": "bert"}'),
        ("config.json", b'{"model_type": ["depthwise"]}'),
    ],
)
def test_anything_else_is_not_replaced(tmp_path: Path, name: str, content: bytes, force: bool) -> None:
    """Also where a file is called as one of a run."""
    data = tmp_path / "data"
    data.mkdir()
    check_destination(data, tmp_path / "theirs", force=force)
    (data / name).write_bytes(content)
    message = f"^{data} is not empty and holds no run to replace; give another folder$"
    with pytest.raises(CheckpointError, match=message):
        check_destination(data, tmp_path / "theirs", force=force)
