"""Is one run better than another? And how good are several of them, which differ in their seeds, together?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from depthwise.data import Example
from depthwise.errors import CheckpointError, DataError
from depthwise.evaluation.evaluating import aligned, settings
from depthwise.evaluation.predicting import predict_all
from depthwise.evaluation.results import (
    Evaluation,
    examples_digest,
    read_evaluation,
    read_predictions,
    result_name,
    result_path,
    weights_digest,
)
from depthwise.evaluation.runs import load_run, open_run
from depthwise.metrics import Comparison, SeedSummary, over_seeds
from depthwise.tasks import MultilingualTranslation, Task


@dataclass(frozen=True)
class Contest:
    """A paired bootstrap, the metric it is by, and whom it is against."""

    against: str
    metric: str
    comparison: Comparison

    def as_dict(self) -> dict[str, Any]:
        """As plain data for a JSON file."""
        return {"against": self.against, "metric": self.metric, **asdict(self.comparison)}


def opponent(
    task: Task,
    split: str,
    examples: Sequence[Example],
    against: Path,
    changes: Sequence[str] = (),
    device: str = "auto",
    precision: str = "fp32",
) -> tuple[str, ...]:
    """The predictions of another run of the same task for our examples, or those in a file."""
    task.check_predictable()
    if against.is_dir():
        return _predictions_of_run(against, task, split, examples, changes, device, precision)
    return aligned(task, split, read_predictions(against), examples)


def check_comparable(task: Task, other: Task, folder: Path) -> None:
    """Raises an error where the run in ``folder`` answers another kind of question."""
    if other.kind != task.kind:
        raise CheckpointError(f"{folder} is a run of {other.kind}, not of {task.kind}; compare runs of the same task")
    ours, theirs = _num_texts(task), _num_texts(other)
    if ours != theirs:
        raise CheckpointError(f"{folder} takes {theirs} texts at a time, not {ours}; compare runs on the same data")


def _num_texts(task: Task) -> int:
    """How many texts an input has; languages, which one model is told and another not, are none."""
    return 1 if isinstance(task, MultilingualTranslation) else task.num_inputs


def contest(
    task: Task, examples: Sequence[Example], ours: Sequence[str], theirs: Sequence[str], against: str
) -> Contest:
    """Paired bootstrap of predictions for the same examples."""
    return Contest(against, task.compared_by, task.compare(ours, theirs, examples))


def _predictions_of_run(
    folder: Path,
    task: Task,
    split: str,
    examples: Sequence[Example],
    changes: Sequence[str],
    device: str,
    precision: str,
) -> tuple[str, ...]:
    """Those that stand in the run if they are for these examples, by these weights, and searched for as now."""
    other = open_run(folder, changes)
    check_comparable(task, other, folder)
    stored = read_evaluation(result_path(folder, split))
    if (
        stored is not None
        and stored.examples_digest == examples_digest(examples)
        and stored.weights_digest == weights_digest(folder)
        and stored.settings == settings(other, precision)
    ):
        return stored.predictions
    run = load_run(folder, changes, device, precision)
    return tuple(
        prediction.text for prediction in predict_all(run, [run.task.inputs_of(example) for example in examples])
    )


@dataclass(frozen=True)
class Seeds:
    """Several runs on the same data: each by itself, all together, and the one that validation data prefers."""

    runs: tuple[tuple[str, Evaluation], ...]
    summaries: dict[str, SeedSummary]
    best_on_valid: str | None
    """Which run has the best score on validation data, where all runs have one on record."""

    def as_dict(self) -> dict[str, Any]:
        """As plain data: means under the names that a single evaluation has, and the runs beside them."""
        found = [evaluation for _, evaluation in self.runs]
        depths = [evaluation.mean_depth for evaluation in found if evaluation.mean_depth is not None]
        return {
            "task": found[0].task,
            "split": found[0].split,
            "metric": found[0].metric,
            "metrics": {name: summary.mean for name, summary in self.summaries.items()},
            "deviations": {name: summary.deviation for name, summary in self.summaries.items()},
            "num_runs": len(found),
            "examples": found[0].examples,
            "mean_depth": sum(depths) / len(depths) if depths else None,
            "seconds": sum(evaluation.seconds for evaluation in found),
            "best_on_valid": self.best_on_valid,
            "runs": {name: evaluation.as_dict() for name, evaluation in self.runs},
        }


def over_runs(task: Task, runs: Sequence[tuple[str, Evaluation]]) -> Seeds:
    """Mean and deviation of every metric. All runs must have been evaluated on the same examples."""
    first_name, first = runs[0]
    for name, evaluation in runs[1:]:
        if evaluation.task != first.task:
            raise CheckpointError(
                f"{name} is a run of {evaluation.task}, but {first_name} of {first.task}; give runs of the same task"
            )
        if evaluation.examples_digest != first.examples_digest:
            raise DataError(
                f"{name} was evaluated on other examples than {first_name}; "
                f"name the same for all with data.{first.split}=FILE"
            )
    names = [name for name in first.metrics if all(name in evaluation.metrics for _, evaluation in runs)]
    summaries = {name: over_seeds([_number(evaluation.metrics[name]) for _, evaluation in runs]) for name in names}
    return Seeds(tuple(runs), summaries, _best_on_valid(task, runs))


def _best_on_valid(task: Task, runs: Sequence[tuple[str, Evaluation]]) -> str | None:
    """The first of the best, judged by results on record of the same weights, settings and validation examples."""
    if runs[0][1].split == "valid":
        return None
    best: tuple[str, float] | None = None
    digests = set()
    for name, evaluation in runs:
        valid = read_evaluation(result_path(Path(name), result_name("valid", evaluation.settings)))
        if valid is None or valid.weights_digest != evaluation.weights_digest or valid.settings != evaluation.settings:
            return None
        value = valid.metrics.get(evaluation.metric)
        if value is None:
            return None
        digests.add(valid.examples_digest)
        if best is None or task.is_better(evaluation.metric, value, best[1]):
            best = name, value
    assert best is not None
    return best[0] if len(digests) == 1 else None


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
