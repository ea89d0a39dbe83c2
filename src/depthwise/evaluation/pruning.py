"""What removing layers or heads changes: quality and speed before and after."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depthwise.evaluation.evaluating import evaluation_of, read_examples
from depthwise.evaluation.results import Evaluation, write_evaluation
from depthwise.evaluation.runs import load_run
from depthwise.models.head_pruning import attention_of


@dataclass(frozen=True)
class Measured:
    """One state of a model: how many parts it has of the kind that is pruned, and how it did.

    Parts are the layers of each side that has or had gates, in the mean over languages where gates are hard, or heads.
    """

    name: str
    parts: dict[str, float]
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
        is_soft = name == "soft gates"
        layers = {f"{side} layers": _num_layers(loaded.model, side, is_soft=is_soft) for side in sides}
        found.append(Measured(name, layers, loaded.model.num_parameters(), evaluation))
    return found


def measured_heads(run: Path, pruned: Path, split: str, device: str = "auto") -> list[Measured]:
    """Evaluate a run and what pruning of heads made of it on the same examples, and write results into both."""
    found = []
    for name, folder in (("all heads", run), ("pruned", pruned)):
        loaded = load_run(folder, (), device)
        evaluation = evaluation_of(loaded, split, read_examples(loaded.task, split))
        write_evaluation(folder, evaluation, split)
        heads = sum(each.num_heads for each in attention_of(loaded.model))
        found.append(Measured(name, {"encoder heads": heads}, loaded.model.num_parameters(), evaluation))
    return found


def _num_layers(model: Any, side: str, *, is_soft: bool) -> float:
    """Layers that run in the mean over languages."""
    gates = model.latent_layers().get(side)
    if gates is None or is_soft:
        return float(getattr(model.model, side).stack.num_layers)
    return float(gates.is_open.sum(1).float().mean())
