"""Folders as runs leave them, written by hand, and the tiny runs that evaluation is tested with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..evaluation.conftest import MakeRun, _no_bars, make_run, originals

__all__ = ["MakeFolder", "MakeRun", "_no_bars", "make_folder", "make_run", "originals"]

MakeFolder = Callable[..., Path]
RECIPE = (
    "task: translation\nseed: {seed}\ndata: {{test: [test.tsv], cache: /cache/{seed}}}\nmodel: {{width: {width}}}\n"
)


def point(
    policy: str, quality: float | None, mean: float, flops: int, seconds: float, **setting: Any
) -> dict[str, Any]:
    measured = {"quality": quality, "mean_depth": mean, "token_layers": 100, "flops": flops, "seconds": seconds}
    return {"policy": policy, "setting": setting, **measured}


def frontier(*points: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """One of 100 inputs and four layers."""
    usual = [
        point("fixed", 60.0, 1.0, 100_000, 1.0, depth=1),
        point("fixed", 100.0, 4.0, 400_000, 4.0, depth=4),
        point("confidence", 90.0, 1.5, 200_000, 1.8, measure="max_probability", threshold=0.5),
        point("confidence", 100.0, 2.0, 240_000, 3.0, measure="max_probability", threshold=0.9),
        point("confidence", 99.0, 1.8, 250_000, 3.0, measure="margin", threshold=0.7),
    ]
    return {
        "schema": 1,
        "task": "translation",
        "split": "valid",
        "metric": "exact_match",
        "higher_is_better": True,
        "num_layers": 4,
        "exits": [1, 2, 3, 4],
        "examples": 100,
        "batch_rows": 1,
        "settings": {},
        "hardware": "abacus",
        "examples_digest": "e",
        "weights_digest": "w",
        "points": list(points) or usual,
        **changes,
    }


def setting(policy: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A calibrated setting as its file has it."""
    return {
        "policy": policy,
        "goal": {"quality_drop": 0.5},
        "budget_met": True,
        "metric": "exact_match",
        "quality": 99.6,
        "full_quality": 100.0,
        "mean_depth": 1.7,
        "full_depth": 4,
        "flops": 210_000,
        "full_flops": 400_000,
        "risk": None,
        "num_trials": 20,
        "split": "valid",
        "examples": 100,
        "examples_digest": "e",
        "weights_digest": "w",
        "settings": {},
        **changes,
    }


def evaluation(value: float, depth: float, policy: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "task": "translation",
        "split": "test",
        "metric": "exact_match",
        "metrics": {"exact_match": value},
        "signatures": {"exact_match": ""},
        "examples": 1000,
        "mean_depth": depth,
        "flops": 10_000_000,
        "seconds": 2.0,
        "tokens_per_second": 900.0,
        "hardware": "abacus",
        "settings": {"policy": policy, "depth": None},
        "examples_digest": "t",
        "weights_digest": "w",
        **changes,
    }


def structured() -> dict[str, Any]:
    """Four inputs of an encoder with one static layer and three others, at the setting and at two thresholds."""
    sequences = [[3, 2.1, 2, 3, 2], [5, 2.6, 3, 4, 2], [8, 3.4, 3, 4, 3], [13, 3.9, 4, 4, 4]]
    return {"num_static": 1, "num_layers": 4, "thresholds": [0.1, 0.9], "sequences": sequences}


def depths(*sentences: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Two sentences that left at depths from 1 to 4, with what two exits would have said."""
    guesses = [[["one", 0.6], ["two", 0.9], ["(end)", 1.0]], [["one", 0.95], ["too", 0.8], ["(end)", 1.0]]]
    usual = [
        {
            "source": "1 2",
            "reference": "one two",
            "output": "one two",
            "tokens": [" one", " two", "(end)"],
            "depths": [1, 4, 2],
            "left_out": 0,
            "guesses": guesses,
        },
        {
            "source": "3",
            "reference": "three",
            "output": "tree",
            "tokens": [" tree", "(end)"],
            "depths": [4, 3],
            "left_out": 0,
            "guesses": [],
        },
    ]
    return {
        "schema": 1,
        "task": "translation",
        "setting": "confidence 0.9",
        "policy": None,
        "split": "test",
        "examples": 2,
        "num_layers": 4,
        "exits": [1, 4],
        "weights_digest": None,
        "of_output": True,
        "sentences": list(sentences) or usual,
        "histograms": {
            "all": {"bins": ["all tokens"], "counts": [[1, 1, 1, 2]]},
            "position": {"bins": ["1", "2"], "counts": [[1, 0, 0, 1], [0, 0, 1, 1]]},
        },
        **changes,
    }


def structured_files(structure: Any) -> dict[str, str]:
    """What differs in the folder of a run that says how many layers it needs."""
    return {
        "config.json": json.dumps({"encoder": {"num_layers": 4}, "structure": {"num_static": 1}}),
        "results/depths.json": json.dumps(depths(setting="structure 0.5", of_output=False, structure=structure)),
    }


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """A run as files: everything that a page shows, but for the model and the data."""

    def made(name: str = "run", *, seed: int = 1, width: int = 8, scale: float = 1.0, **files: Any) -> Path:
        folder = tmp_path / name
        (folder / "results").mkdir(parents=True)
        lines = [
            {"update": 100 * n, "epoch": 1.0, "nll": scale * 4.0 / n, "nll_at_1": scale * 5.0 / n, "gradient_norm": 1.0}
            | {f"gradient_norm/decoder.{layer}": 0.1 * n * (layer + 1) for layer in range(2)}
            for n in range(1, 4)
        ]
        lines.append({"update": 300, "valid_nll": scale * 1.5})
        gates = [
            {
                "update": 100 * n,
                "decoder": {each: {"probabilities": [0.5, 0.1 * n], "samples": [1, 0]} for each in "ab"},
            }
            for n in range(1, 4)
        ]
        content = {
            "recipe.yaml": RECIPE.format(seed=seed, width=width),
            "recipe.given.yaml": f"# depthwise train start/translate seed={seed}\ntask: translation\n",
            "config.json": json.dumps({"decoder": {"num_layers": 4}, "encoder": {"num_layers": 2}, "exits": {}}),
            "training.json": json.dumps(
                {"num_updates": 300, "seconds": 12.0, "num_parameters": 12345, "hardware": "abacus"}
            ),
            "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in lines),
            "layers.jsonl": "".join(json.dumps(line) + "\n" for line in gates),
            "results/frontier.json": json.dumps(frontier()),
            "results/depths.json": json.dumps(depths()),
            "results/test.json": json.dumps(evaluation(98.0, 4.0)),
            "calibration.json": json.dumps(
                {"schema": 1, "settings": {"drop-0.5": setting({"kind": "confidence", "threshold": [0.8]})}}
            ),
            **files,
        }
        for path, text in content.items():
            if text is not None:
                (folder / path).write_text(text, encoding="utf-8")
        return folder

    return made
