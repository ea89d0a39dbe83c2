"""What benchmarks/structure.py compares a run that says how many layers it needs with."""

import json
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from depthwise.evaluation import load_run

from .evaluation.conftest import MakeRun, make_run, originals
from .scripts import ROOT, loaded

__all__ = ["make_run", "originals"]

QUALITIES = {2: 70.0, 3: 80.0, 4: 80.0, 5: 81.0, 6: 79.0}


@pytest.fixture
def structure(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return loaded("benchmarks/structure.py")


@pytest.mark.parametrize(
    ("mean_depth", "sign", "best"),
    [
        (3.0, 1, 3),
        (3.2, 1, 3),  # four layers are as good as three, and more
        (4.1, 1, 5),  # rounded up to whole layers: in favour of the constant depth
        (6.0, 1, 5),
        (2.0, 1, 2),
        (5.0, -1, 2),
        (0.5, 1, None),
        (math.nan, 1, None),
    ],
)
def test_the_best_constant_depth(structure: Any, mean_depth: float, sign: int, best: int | None) -> None:
    assert structure.best_constant(QUALITIES, mean_depth, sign) == best


def test_speeds_of_settings_beside_another_run(structure: Any, make_run: MakeRun, monkeypatch: Any) -> None:
    monkeypatch.setattr(structure, "REPEATS", 1)
    run, beside = (load_run(make_run(kind), device="cpu") for kind in ("structured classes", "classes"))
    found = structure.speeds(run, beside, "valid", ["0.0", "1.0"])
    assert found["full"] == found["0.0"]
    assert (found["full_layers"], found["0.0_layers"], found["1.0_layers"]) == (4, 4, 2)
    for rows in (1, 32):
        assert found[f"full_of_full_{rows}"] == 1
        assert found[f"1.0_of_full_{rows}"] > 0
        ratio = found[f"1.0_faster_{rows}"] / found[f"full_faster_{rows}"]
        assert found[f"1.0_of_full_{rows}"] == pytest.approx(ratio)
    assert 0 <= found["beside"] <= 100


def test_choosing_a_setting_is_not_timed(structure: Any, make_run: MakeRun, monkeypatch: Any) -> None:
    """It takes longer than a small model does."""
    chooses = structure.by_policy

    def slowly(run: Any, options: Any) -> Any:
        time.sleep(0.2 if options is not None else 0)
        return chooses(run, options)

    monkeypatch.setattr(structure, "REPEATS", 1)
    monkeypatch.setattr(structure, "by_policy", slowly)
    run, beside = (load_run(make_run(kind), device="cpu") for kind in ("structured classes", "classes"))
    found = structure.speeds(run, beside, "valid", ["1.0"])
    assert found["1.0_faster_32"] > 0.2


def test_every_other_layer_is_left_out(
    structure: Any, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run that does not decide on its layers itself."""
    monkeypatch.setattr(structure, "REPEATS", 1)
    folder = make_run("classes")
    whole, half = load_run(folder, device="cpu"), load_run(folder, device="cpu")
    kept = half.model.model.encoder.stack.layers[0]
    smaller = structure.reduced(half, every_other=True, share=0.0)
    assert list(smaller.model.model.encoder.stack.layers) == [kept]
    assert whole.model.model.encoder.stack.num_layers == 2

    def speeds_of(run: Any, *options: str) -> Any:
        monkeypatch.setattr(
            sys, "argv", ["structure.py", "speeds", str(run), "--at", "full", "--device", "cpu", *options]
        )
        structure.main()
        return json.loads(capsys.readouterr().out)

    found = speeds_of(folder, "--every-other", "--name", "half")
    assert found["full_layers"] == 1
    written = json.loads((folder / "results" / "half.json").read_text())
    assert written["metrics"] == found
    with pytest.raises(SystemExit):
        speeds_of(make_run("structured classes"), "--every-other")
    assert "decides on its layers by itself; leave --every-other out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("blocks", "kept"), [([0, 0, 1, 1], [0, 1]), ([0, 1, 0, 1], [0, 1]), ([0, 1, 2, 0, 1, 2], [0, 2, 1])]
)
def test_half_of_the_layers_run_all_blocks_if_they_can(structure: Any, blocks: list[int], kept: list[int]) -> None:
    stack = SimpleNamespace(block_of=blocks, num_layers=len(kept))
    inner = SimpleNamespace(encoder=SimpleNamespace(stack=stack), config=SimpleNamespace())
    structure.reduced(SimpleNamespace(model=SimpleNamespace(model=inner)), every_other=True, share=0.0)
    assert stack.block_of == kept


def test_what_thresholds_do_is_drawn_from_records(
    structure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = {"depth-3": 70.0, "depth-12": 80.0, "gamma-0.5": 75.0, "gamma-0.5_layers": 6.0}
    metrics |= {"gamma-0.1": 80.0, "gamma-0.1_layers": 12.0}
    results = {"frontier-x": {"metrics": metrics}, "valid": {"metrics": {"accuracy": 1.0}}}
    command = "depthwise train classification/x seed=1 training.depth_cost=0.1 'model.structure={num_static: 2}'"
    other = {"frontier-x": {"metrics": {**metrics, "gamma-0.5": 73.0, "gamma-0.5_layers": 4.0}}}
    single = {"frontier-x": {"metrics": {"depth-12": 80.0}}}  # the likeliest number decides: there are no thresholds
    records = [
        {"command": command, "results": results},
        {"command": command.replace("seed=1", "seed=2"), "results": other},
        {"command": "depthwise train classification/z", "results": single},
        {"command": "depthwise train tagging/y", "results": results},
    ]
    found = structure.by_threshold(records, "^classification")
    assert list(found.values()) == [[(0.1, 12.0, 0.0), (0.5, 5.0, 6.0)]]
    assert structure.in_short(*found) == "x, depth_cost 0.1"
    taught = "tagging/y model.from=runs/one training.teacher.run=runs/other"
    assert structure.in_short(taught) == "y, from one, teacher.run other"
    (tmp_path / "records.json").write_text(json.dumps(records))
    told = ["structure.py", "thresholds", str(tmp_path / "records.json"), "--plot", str(tmp_path / "out.png")]
    monkeypatch.setattr(sys, "argv", told)
    structure.main()
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
