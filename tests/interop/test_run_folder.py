"""Runs that are there whole or not at all; the importers' own tests cover the rest."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from depthwise.errors import CheckpointError
from depthwise.interop.run_folder import written_at


def test_weights_that_cannot_be_written(tmp_path: Path) -> None:
    """Safetensors has an error of its own for a disk that is full or gone."""
    run = tmp_path / "run"
    with pytest.raises(CheckpointError, match=rf"^{run} cannot be written: .*No such file.*; give another folder$"):  # noqa: SIM117
        with written_at(run) as folder:
            save_file({"weight": torch.ones(2)}, folder / "absent" / "model.safetensors")
    assert list(tmp_path.iterdir()) == []
