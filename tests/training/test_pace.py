"""Rates of updates: which stretches of a training count."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from depthwise.training import pace
from depthwise.training.finishing import finished
from depthwise.training.run import train

from .conftest import recipe_of


def test_only_stretches_between_lines_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    found: Any = pace.Pace()

    def line(seconds: float, update: int, num_items: int) -> None:
        clock[0] += seconds
        found.on_log(None, SimpleNamespace(global_step=update), None, {"loss": 1.0, "num_items": num_items})

    assert (found.updates_per_second, found.items_per_second) == (None, None)
    line(50, 100, 7000)  # with all that a beginning costs
    line(5, 200, 8000)
    found.on_log(None, SimpleNamespace(global_step=250), None, {"valid_loss": 1.0})
    found.on_evaluate(None, None, None, metrics={})
    line(9, 300, 9000)  # a validation lies between
    line(3, 400, 6000)
    found.on_save(None, None, None)
    line(9, 500, 9000)
    assert (found.updates_per_second, found.items_per_second) == (200 / 8, 14000 / 8)


def test_a_run_knows_its_pace(classification: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = train(recipe_of(classification, max_updates=6, validate_every=6, log_every=2), run)
    summary = json.loads((run / "training.json").read_text())
    for name in ("updates_per_second", "items_per_second"):
        assert summary[name] == getattr(done, name) > 0
    assert done.updates_per_second is not None
    assert done.updates_per_second > done.num_updates / done.seconds  # which has the beginning in it too
    assert finished(run, 6, summary["chosen"]).items_per_second == done.items_per_second  # type: ignore[union-attr]


def test_summaries_without_rates(classification: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipe = recipe_of(classification, max_updates=2, validate_every=2)
    train(recipe, run)
    summary = json.loads((run / "training.json").read_text())
    kept = {name: value for name, value in summary.items() if not name.endswith("per_second")}
    (run / "training.json").write_text(json.dumps(kept))
    again = train(recipe, run)
    assert (again.was_finished, again.updates_per_second) == (True, None)
