"""From a run, or from given predictions, and a split of its data to scores."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from depthwise.config import PolicyConfig, as_dict, policy_dict
from depthwise.data import Example, LineReport, Row
from depthwise.engine import Drafting, Drafts
from depthwise.errors import DataError, InputError
from depthwise.evaluation.costing import SequenceCosts
from depthwise.evaluation.depths import by_part, recorded_depths
from depthwise.evaluation.policies import is_of_sources
from depthwise.evaluation.predicting import WARM_UP_ROWS, predict_rows, run_by, warm_up
from depthwise.evaluation.results import Evaluation, examples_digest, finite, weights_digest, write_evaluation
from depthwise.evaluation.runs import Run
from depthwise.evaluation.timing import Timing, hardware, timed_in_turns
from depthwise.evaluation.validation import validate
from depthwise.metrics import Score
from depthwise.tasks import LikelihoodTask, MaskedLanguageModeling, Prediction, SequenceToSequence, Task
from depthwise.tasks.word_depths import WordDepthTask

LIMITS = ("max_tokens", "max_source_tokens", "max_question_tokens", "stride", "too_long", "unanswerable")
"""Options of the data that decide what a model sees of an input, or may say about it."""
log = logging.getLogger(__name__)


def evaluate_run(run: Run, split: str) -> Evaluation:
    """Predict a split, score it, and write the result into the run."""
    evaluation = evaluation_of(run, split, read_examples(run.task, split))
    write_evaluation(run.folder, evaluation)
    return evaluation


@dataclass(frozen=True)
class Outcome:
    """What became of some examples: their scores, how deep tokens ran for that, and what it cost."""

    scores: dict[str, Score]
    timing: Timing
    num_tokens: int
    token_layers: int
    """Those of the tokens that came out; with drafts, others ran too: ``layers_run`` counts all."""
    flops: int
    predictions: tuple[str, ...] = field(default=(), repr=False)
    drafts: Drafts | None = None
    layers_run: int | None = None
    num_source_tokens: int | None = None
    """Where depths and layers are those of sources: how many tokens these have."""

    @property
    def mean_depth(self) -> float | None:
        num_tokens = self.num_tokens if self.num_source_tokens is None else self.num_source_tokens
        return self.token_layers / num_tokens if num_tokens else None


def evaluation_of(run: Run, split: str, examples: Sequence[Example]) -> Evaluation:
    """Predict and score examples."""
    found = outcome_of(run, examples)
    return Evaluation(
        **_facts(run.task, split, found.scores, examples),
        mean_depth=found.mean_depth,
        depth_of=None if found.num_source_tokens is None else "encoder",
        token_layers=found.token_layers if found.drafts is None else found.layers_run,
        flops=found.flops if found.drafts is None else None,
        acceptance_rate=None if found.drafts is None else found.drafts.acceptance_rate,
        seconds=found.timing.seconds,
        examples_per_second=found.timing.rate(len(examples)),
        tokens_per_second=found.timing.rate(found.num_tokens),
        peak_memory_bytes=found.timing.peak_memory_bytes,
        hardware=hardware(run.device),
        scored_by=run.task.scored_by,
        settings=settings(run.task, run.precision, run.depth, run.policy, run.engine.drafting),
        weights_digest=weights_digest(run.folder),
        predictions=found.predictions,
    )


def outcome_of(
    run: Run, examples: Sequence[Example], *, shows_progress: bool = True, of_sources: bool | None = None
) -> Outcome:
    """Run a model over examples. Time is that of the model alone, behind a first batch that is not counted.

    With ``evaluation.turns`` everything is run several times; what is counted is counted in the last. Depths are those
    of sources, or else of what came out: of those that the run decides on, unless ``of_sources`` says which.
    """
    if isinstance(run.task, LikelihoodTask):
        if run.engine.drafting is not None:
            raise InputError(
                f"{run.folder} is judged by the likelihood of texts, for which nothing is drafted; leave out --lossless"
            )
        return _by_likelihood(run.task, run, examples, shows_progress)
    task = run.task
    task.check_examples(examples)
    rows = task.rows([task.inputs_of(example) for example in examples])
    warm_up(task, run.engine, rows)

    def predict() -> list[Prediction]:
        run.engine.forget_counts()
        return predict_rows(task, run.engine, rows, shows_progress=shows_progress)

    found, timing = timed_in_turns(predict, run.device, task.recipe.evaluation.turns)
    outcome = outcome_from(run, examples, rows, found, timing, of_sources=of_sources)
    if run.engine.drafting is None:
        return outcome
    return replace(outcome, drafts=run.engine.drafts, layers_run=run.engine.generated_layers)


def outcome_from(
    run: Run,
    examples: Sequence[Example],
    rows: Sequence[Row],
    found: Sequence[Prediction],
    timing: Timing,
    *,
    of_sources: bool | None = None,
) -> Outcome:
    """What predictions of the rows of examples come to, by the policy that the run has."""
    costs = SequenceCosts(run.model, run.policy)
    texts = tuple(prediction.text for prediction in found)
    depths = [depth for prediction in found for depth in prediction.depths]
    flops = sum(_flops(run.task, costs, row, prediction) for row, prediction in zip(rows, found, strict=True))
    scores = run.task.score(texts, examples)
    if not (is_of_sources(run.model, run.policy) if of_sources is None else of_sources):
        return Outcome(scores, timing, len(depths), sum(depths), flops, texts)
    of_rows = [_depths_of_source(run, row, prediction) for row, prediction in zip(rows, found, strict=True)]
    num_read, num_layers = sum(map(len, of_rows)), sum(map(sum, of_rows))
    return Outcome(scores, timing, len(depths), num_layers, flops, texts, num_source_tokens=num_read)


def _depths_of_source(run: Run, row: Row, prediction: Prediction) -> Sequence[int]:
    """How deep the tokens of a source ran: all the way, unless the model decides on it."""
    encoder = run.model.config.options.encoder
    assert encoder is not None
    return prediction.source_depths or [encoder.num_layers] * len(row.texts[0])


def _flops(task: Task, costs: SequenceCosts, row: Row, prediction: Prediction) -> int:
    if isinstance(task, SequenceToSequence):
        return costs.generated(prediction.depths, len(row.texts[0]), prediction.source_depths)
    return sum(costs.read(depths) for depths in by_part(row, prediction.depths))


def _by_likelihood(task: LikelihoodTask, run: Run, examples: Sequence[Example], shows_progress: bool) -> Outcome:
    """Sum the losses of examples as validation does. Tokens are those that the model was fed."""
    prepared, budget = task.judged(examples), task.tokens_at_once
    with run_by(run.engine):
        validate(task, run.model, prepared, batch_tokens=budget, only_rows=WARM_UP_ROWS)

    def judge() -> tuple[dict[str, float], int, Callable[[], list[list[int]]]]:
        with run_by(run.engine), recorded_depths(run.model) as record:
            found = validate(task, run.model, prepared, batch_tokens=budget, shows_progress=shows_progress)
        return *found, record

    (totals, num_items, record), timing = timed_in_turns(judge, run.device, task.recipe.evaluation.turns)
    costs, depths = SequenceCosts(run.model, run.policy), record()
    if isinstance(task, MaskedLanguageModeling):
        flops = sum(map(costs.blocks, depths)) + costs.head * num_items
    else:
        flops = sum(map(costs.read, depths))
    scores = task.likelihood_scores(totals, num_items, examples)
    return Outcome(scores, timing, sum(map(len, depths)), sum(map(sum, depths)), flops)


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


def read_examples(task: Task, split: str) -> list[Example]:
    """All examples of a split; those that the rules leave out are reported."""
    corpus, report = task.corpus(split), LineReport(task.rules)
    examples = list(corpus.examples(report))
    if report.num_bad:
        report.num_kept = len(examples)
        log.warning("%s: %s", corpus.name, report.summary())
    if not examples:
        raise DataError(f"there are no examples in {corpus.name}; give data.{split}=FILE with at least one")
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


def settings(
    task: Task,
    precision: str,
    depth: int | None = None,
    policy: PolicyConfig | None = None,
    drafting: Drafting | None = None,
) -> dict[str, Any]:
    """What predictions depend on beside weights and inputs."""
    searches = task.scored_by == "predictions" and task.searches
    words = task.word_options if isinstance(task, WordDepthTask) else None
    return {
        **({} if words is None else {"word_depths": as_dict(words)}),
        **({} if drafting is None else {"lossless": asdict(drafting)}),
        **({} if task.recipe.evaluation.gates is None else {"gates": task.recipe.evaluation.gates}),
        "precision": precision,
        "depth": depth,
        "policy": None if policy is None else policy_dict(policy),
        "generation": asdict(task.recipe.generation) if searches else None,
        "limits": {name: getattr(task.recipe.data, name) for name in LIMITS},
    }
