"""From a run, or from given predictions, and a split of its data to scores."""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from depthwise.data import Example, LineReport
from depthwise.errors import DataError
from depthwise.evaluation.predicting import predict_rows, warm_up
from depthwise.evaluation.results import Evaluation, examples_digest, finite, weights_digest, write_evaluation
from depthwise.evaluation.runs import Run
from depthwise.evaluation.timing import Timing, hardware, timed
from depthwise.evaluation.validation import validate
from depthwise.metrics import Score
from depthwise.tasks import LikelihoodTask, Prediction, Task

LIMITS = ("max_tokens", "max_source_tokens", "max_question_tokens", "stride", "too_long", "unanswerable")
"""Options of the data that decide what a model sees of an input, or may say about it."""
log = logging.getLogger(__name__)


def evaluate_run(run: Run, split: str) -> Evaluation:
    """Predict a split, score it, and write the result into the run."""
    evaluation = evaluation_of(run, split, read_examples(run.task, split))
    write_evaluation(run.folder, evaluation)
    return evaluation


def evaluation_of(run: Run, split: str, examples: Sequence[Example]) -> Evaluation:
    """Predict and score examples. Time is that of predicting alone, behind a first batch that is not counted."""
    task = run.task
    if isinstance(task, LikelihoodTask):
        return _by_likelihood(task, run, split, examples)
    task.check_examples(examples)
    rows = task.rows([task.inputs_of(example) for example in examples])
    warm_up(task, run.model, rows)
    predictions, timing = timed(lambda: predict_rows(task, run.model, rows), run.device)
    depths = [depth for prediction in predictions for depth in prediction.depths]
    texts = tuple(prediction.text for prediction in predictions)
    return Evaluation(
        **_facts(task, split, task.score(texts, examples), examples),
        **_measured(run, timing, len(examples), len(depths)),
        predictions=texts,
        mean_depth=mean_depth(predictions),
    )


def _by_likelihood(task: LikelihoodTask, run: Run, split: str, examples: Sequence[Example]) -> Evaluation:
    """Sum the losses of examples as validation does. Time is that of the model, and tokens are those it was fed."""
    prepared = task.judged(examples)
    found, timing = timed(
        lambda: validate(task, run.model, prepared, batch_tokens=task.tokens_at_once, shows_progress=True), run.device
    )
    totals, num_items = found
    return Evaluation(
        **_facts(task, split, task.likelihood_scores(totals, num_items, examples), examples),
        **_measured(run, timing, len(examples), int(totals["depth_tokens"])),
        mean_depth=totals["depth"] / totals["depth_tokens"],
        scored_by=task.scored_by,
    )


def score_predictions(task: Task, split: str, given: Sequence[str]) -> Evaluation:
    """Score predictions that somebody else made; no model is needed. Time is that of scoring."""
    examples = read_examples(task, split)
    texts = aligned(task, split, given, examples)
    started = time.perf_counter()
    facts = _facts(task, split, task.score(texts, examples), examples)
    seconds = time.perf_counter() - started
    return Evaluation(**facts, predictions=texts, seconds=seconds, hardware=hardware(torch.device("cpu")))


def _facts(task: Task, split: str, scores: dict[str, Score], examples: Sequence[Example]) -> dict[str, Any]:
    """What is known of an evaluation whatever was scored."""
    return {
        "task": task.kind,
        "split": split,
        "metric": task.metrics[0],
        "metrics": {name: finite(score.value) for name, score in scores.items()},
        "signatures": {name: score.signature for name, score in scores.items()},
        "examples": len(examples),
        "seed": task.recipe.seed,
        "examples_digest": examples_digest(examples),
    }


def _measured(run: Run, timing: Timing, num_examples: int, num_tokens: int) -> dict[str, Any]:
    """What it cost to run a model, and what it ran with."""
    return {
        "seconds": timing.seconds,
        "examples_per_second": timing.rate(num_examples),
        "tokens_per_second": timing.rate(num_tokens),
        "peak_memory_bytes": timing.peak_memory_bytes,
        "hardware": hardware(run.device),
        "settings": settings(run.task, run.precision, run.depth),
        "weights_digest": weights_digest(run.folder),
    }


def read_examples(task: Task, split: str) -> list[Example]:
    """All examples of a split; those that the rules leave out are reported."""
    corpus, report = task.corpus(split), LineReport(task.rules)
    examples = list(corpus.examples(report))
    if report.num_bad:
        report.num_kept = len(examples)
        log.warning("%s: %s", corpus.name, report.summary())
    if not examples:
        raise DataError(f"{corpus.name} has no examples; give data.{split}=FILE with at least one")
    return examples


def aligned(task: Task, split: str, given: Sequence[str], examples: Sequence[Example]) -> tuple[str, ...]:
    """Predictions of the examples, from one for each of them or one for each line, good or bad, of their file."""
    task.check_predictable()
    if len(given) == len(examples):
        return tuple(given)
    corpus = task.corpus(split)
    one_file = len({example.file for example in examples}) == 1
    if task.has_lines and one_file and len(given) == corpus.num_lines():
        return tuple(given[example.line - 1] for example in examples)
    raise DataError(
        f"there are {len(given):,} predictions for {len(examples):,} examples of {corpus.name}; "
        "give one on each line, in their order"
    )


def mean_depth(predictions: Sequence[Prediction]) -> float | None:
    """Over all tokens that have a depth."""
    depths = [depth for prediction in predictions for depth in prediction.depths]
    return sum(depths) / len(depths) if depths else None


def settings(task: Task, precision: str, depth: int | None) -> dict[str, Any]:
    """What predictions depend on beside weights and inputs."""
    searches = task.scored_by == "predictions" and task.searches
    search = asdict(task.recipe.generation) if searches else None
    limits = {name: getattr(task.recipe.data, name) for name in LIMITS}
    return {"precision": precision, "depth": depth, "generation": search, "limits": limits}
