"""Training on a GPU: it waits for nothing, in every precision."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.training.run import train
from depthwise.training.steering import Steering

from .conftest import recipe_of

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_an_update_does_not_wait_for_the_device(
    translation: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, clip_norm: float
) -> None:
    original = Steering.on_step_end

    def on_step_end(self: Steering, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control = original(self, args, state, control, **kwargs)
        watched = 2 <= state.global_step < 10
        torch.cuda.set_sync_debug_mode("error" if watched else "default")
        return control

    monkeypatch.setattr(Steering, "on_step_end", on_step_end)
    rare = {"max_updates": 12, "log_every": 12, "validate_every": 12}
    recipe = recipe_of(translation, **rare, precision=precision, clip_norm=clip_norm, workers=0)
    try:
        train(recipe, tmp_path / "run")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    line, _ = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert 0 < json.loads(line)["loss"] < 20


def test_workers_and_accumulation(translation: dict[str, Any], tmp_path: Path) -> None:
    recipe = recipe_of(translation, max_updates=6, workers=2, accumulate=2, precision="bf16")
    assert train(recipe, tmp_path / "run").num_updates == 6
