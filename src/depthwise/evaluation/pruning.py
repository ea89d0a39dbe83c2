"""What removing layers or heads changes: quality and speed before and after."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from depthwise.data import Example
from depthwise.evaluation.evaluating import evaluation_of, read_examples
from depthwise.evaluation.results import Evaluation, read_evaluation, result_path, write_evaluation
from depthwise.evaluation.runs import load_run, pick_device
from depthwise.models.head_pruning import attention_of
from depthwise.tasks import Task

TIMES_AS_FAST = "times_as_fast"
"""A metric that comparisons have, and no other result."""


@dataclass(frozen=True)
class Measured:
    """One state of a model: how many parts it has of the kind that is pruned, and how it did.

    Parts are the layers of each side that has or had gates, in the mean over languages where gates are hard, or heads.
    """

    name: str
    parts: dict[str, float]
    num_parameters: int
    evaluation: Evaluation


def examples_to_measure(tasks: Sequence[Task], split: str, device: str) -> list[Example]:
    """The examples of a split; raises what would keep any of the runs of these tasks from being evaluated on them."""
    pick_device(device)
    examples = read_examples(tasks[0], split)
    for task in tasks:
        task.check_examples(examples)
    return examples


def measured(
    run: Path,
    pruned: Path,
    split: str,
    examples: Sequence[Example],
    num_open: Mapping[str, float],
    pairs: Sequence[str] = (),
    changes: Sequence[str] = (),
    device: str = "auto",
) -> list[Measured]:
    """Evaluate a run with soft and with hard gates, and what was made of it, on the same examples.

    ``num_open`` is how many layers of each gated side are open there by hard gates. ``pairs`` are changes of the run's
    recipe that make it translate what the pruned one does, ``changes`` are those of all three. Results are written into
    both runs, unless changes make them different from what their names say.
    """
    found = []
    for name, folder, given in (
        ("soft gates", run, [*pairs, "evaluation.gates=soft"]),
        ("hard gates", run, [*pairs, "evaluation.gates=hard"]),
        ("pruned", pruned, []),
    ):
        loaded = load_run(folder, [*given, *changes], device)
        evaluation = evaluation_of(loaded, split, examples)
        if not changes:
            write_evaluation(folder, evaluation, split if folder == pruned else f"{split}-{name.split()[0]}")
        layers = {
            f"{side} layers": number if name == "hard gates" else _num_layers(loaded.model, side, is_soft=folder == run)
            for side, number in num_open.items()
        }
        found.append(Measured(name, layers, loaded.model.num_parameters(), evaluation))
    return found


def compared(states: Sequence[Measured], layers: Mapping[str, Mapping[str, Sequence[int]]]) -> Evaluation:
    """The evaluation of what is left, and among its metrics those of soft and of hard gates, how many times as fast as
    with soft gates it is, and how many of the ``layers`` stay: of each side and language, and in the mean over these.
    """
    *gated, left = states
    found = dict(left.evaluation.metrics)
    for state in gated:
        name = state.name.split()[0]
        found |= {f"{name}_{metric}": value for metric, value in state.evaluation.metrics.items()}
        found[f"{name}_examples_per_second"] = state.evaluation.examples_per_second
    before, after = states[0].evaluation.examples_per_second, left.evaluation.examples_per_second
    found[TIMES_AS_FAST] = after / before if before and after else None
    for side, by_language in layers.items():
        numbers = {f"{side}_layers/{language}": float(len(kept)) for language, kept in by_language.items()}
        found |= {f"{side}_layers": sum(numbers.values()) / len(numbers), **numbers}
        found[f"{side}_layers_before"] = states[0].parts[f"{side} layers"]
    signatures = {name: left.evaluation.signatures.get(name, "beside what is left") for name in found}
    settings = {**left.evaluation.settings, "layers": {side: dict(of_side) for side, of_side in layers.items()}}
    return replace(left.evaluation, metrics=found, signatures=signatures, settings=settings)


def is_taken(run: Path, name: str) -> bool:
    """Whether a comparison of this name would take the place of a result of another kind."""
    path = result_path(run, name)
    earlier = read_evaluation(path)
    return os.path.exists(path) and (earlier is None or TIMES_AS_FAST not in earlier.metrics)


def measured_heads(
    run: Path, pruned: Path, split: str, examples: Sequence[Example], device: str = "auto"
) -> list[Measured]:
    """Evaluate a run and what pruning of heads made of it on the same examples, and write results into both."""
    found = []
    for name, folder in (("all heads", run), ("pruned", pruned)):
        loaded = load_run(folder, (), device)
        evaluation = evaluation_of(loaded, split, examples)
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
