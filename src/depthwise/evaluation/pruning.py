"""What removing layers changes: quality and speed with soft gates, with hard ones, and without the layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depthwise.evaluation.evaluating import evaluation_of, read_examples
from depthwise.evaluation.results import Evaluation, write_evaluation
from depthwise.evaluation.runs import load_run


@dataclass(frozen=True)
class Measured:
    """One state of a model: the layers that its gated sides have, or run where gates are hard, and how it did."""

    name: str
    layers: dict[str, float]
    """Of each side that has or had gates, in the mean over languages."""
    num_parameters: int
    evaluation: Evaluation


def measured(
    run: Path, pruned: Path, split: str, sides: Sequence[str], changes: Sequence[str] = (), device: str = "auto"
) -> list[Measured]:
    """Evaluate a run with soft and with hard gates, and what was made of it, on the same examples.

    ``changes`` are those of the run's recipe that make it translate what the pruned one does. Results are written into
    both runs.
    """
    found = []
    for name, folder, given in (
        ("soft gates", run, [*changes, "evaluation.gates=soft"]),
        ("hard gates", run, [*changes, "evaluation.gates=hard"]),
        ("pruned", pruned, []),
    ):
        loaded = load_run(folder, given, device)
        evaluation = evaluation_of(loaded, split, read_examples(loaded.task, split))
        write_evaluation(folder, evaluation, split if folder == pruned else f"{split}-{name.split()[0]}")
        layers = {side: _num_layers(loaded.model, side, is_soft=name == "soft gates") for side in sides}
        found.append(Measured(name, layers, loaded.model.num_parameters(), evaluation))
    return found


def _num_layers(model: Any, side: str, *, is_soft: bool) -> float:
    """Layers that run in the mean over languages."""
    gates = model.latent_layers().get(side)
    if gates is None or is_soft:
        return float(getattr(model.model, side).stack.num_layers)
    return float(gates.is_open.sum(1).float().mean())
