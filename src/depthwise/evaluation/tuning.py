"""Choosing what validation data can still decide: how a text is searched for, and when there is no answer.

A text has a length penalty and a limit on its length. Each length penalty needs a search of its own, since the penalty
decides which hypotheses are kept. The limit on the length does not: a source whose search ended before it reached the
limit would have ended the same way under any limit beyond that step, so only the others are searched again.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from depthwise.config import SearchConfig
from depthwise.data import Example
from depthwise.engine import Engine
from depthwise.errors import InputError
from depthwise.evaluation.predicting import predict_rows, prediction_batches, run_by
from depthwise.evaluation.validation import likelihood_scores
from depthwise.metrics import best_null_threshold, squad_values
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.tasks import LikelihoodTask, Prediction, QuestionAnswering, SequenceToSequence, Task
from depthwise.tasks.question_answering import OF_ALL, right_answers

LENGTH_PENALTIES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)


@dataclass(frozen=True)
class Trial:
    """The score of one way to search, and how many sources had to be searched for it."""

    search: SearchConfig
    value: float
    num_searched: int


def score_model(task: Task, model: DepthwisePreTrainedModel, examples: Sequence[Example]) -> float:
    """The metric that is quoted."""
    if isinstance(task, LikelihoodTask):
        return likelihood_scores(task, model, examples)[task.metrics[0]].value
    task.check_examples(examples)
    rows = task.rows([task.inputs_of(example) for example in examples])
    return _value(task, predict_rows(task, Engine(model), rows), examples)


def tune_search(
    task: SequenceToSequence,
    model: DepthwisePreTrainedModel,
    examples: Sequence[Example],
    length_penalties: Sequence[float] = LENGTH_PENALTIES,
    max_lengths: Sequence[tuple[float, int]] | None = None,
) -> list[Trial]:
    """Every length penalty with every limit; the present ones are among them, and their trial comes first.

    Limits are pairs of ``max_factor`` and ``max_extra``; none means those that suit the task.
    A greedy search knows no penalty, so that only the limits are tried.
    """
    present = task.recipe.generation
    penalties = sorted({present.length_penalty, *(length_penalties if present.num_beams > 1 else ())})
    max_lengths = task.max_lengths if max_lengths is None else max_lengths
    limits = sorted({(present.max_factor, present.max_extra), *max_lengths})
    rows = task.rows([task.inputs_of(example) for example in examples])
    lengths = torch.tensor([len(row.texts[0]) for row in rows])
    trials, engine = [], Engine(model)
    for penalty in penalties:
        free: dict[int, Prediction] = {}  # predictions in which no limit had a part
        for factor, extra in limits:
            search = replace(present, length_penalty=penalty, max_factor=factor, max_extra=extra)
            tried = with_search(task, search)
            most: list[int] = tried.target_limits(lengths).tolist()
            found = {place: kept for place, kept in free.items() if _steps(kept) < most[place]}
            missing = [place for place in range(len(rows)) if place not in found]
            fresh = dict(zip(missing, predict_rows(tried, engine, [rows[place] for place in missing]), strict=True))
            free.update({place: new for place, new in fresh.items() if _steps(new) < most[place]})
            found.update(fresh)
            predictions = [found[place] for place in range(len(rows))]
            trials.append(Trial(search, _value(tried, predictions, examples), len(missing)))
    return sorted(trials, key=lambda trial: trial.search != present)


def tune_threshold(
    task: QuestionAnswering, model: DepthwisePreTrainedModel, examples: Sequence[Example]
) -> list[Trial]:
    """The present threshold of no answer and the best one, for the metric that is quoted: exact match or F1.

    Every question is answered once; thresholds are then tried on the margins of its answers.
    """
    if task.metrics[0] not in OF_ALL:
        raise InputError(f"a threshold is chosen by f1 or exact, not by {task.metrics[0]}; set evaluation.metrics=[f1]")
    rows = task.rows([task.inputs_of(example) for example in examples])
    found: dict[int, tuple[str, float]] = {}
    with run_by(Engine(model)):
        for batch in prediction_batches(task, model, rows):
            answers = task.answers(model, [rows[index] for index in batch])
            found.update(zip(batch, ((answer.text, answer.null_margin) for answer in answers), strict=True))
    texts = [found[index][0] for index in range(len(rows))]
    margins = np.array([found[index][1] for index in range(len(rows))])
    right = right_answers(examples)
    values = squad_values(texts, right)[:, ("exact", "f1").index(task.metrics[0])]
    best = best_null_threshold(margins, values, [len(given) > 0 for given in right])
    largest = float(margins[np.isfinite(margins)].max(initial=0.0))
    trials = []
    for threshold in (task.recipe.generation.null_threshold, min(best.threshold, largest)):
        said = ["" if margin > threshold else text for text, margin in zip(texts, margins, strict=True)]
        search = replace(task.recipe.generation, null_threshold=threshold)
        trials.append(Trial(search, task.score(said, examples)[task.metrics[0]].value, len(rows)))
    return trials


def best_trial(task: Task, trials: Sequence[Trial]) -> Trial:
    """The best; the present one, which comes first, unless another is truly better."""
    best = trials[0]
    for trial in trials[1:]:
        if task.is_better(task.metrics[0], trial.value, best.value):
            best = trial
    return best


def with_search(task: SequenceToSequence, search: SearchConfig) -> SequenceToSequence:
    """The same task that searches in another way."""
    changed = copy.copy(task)
    changed.recipe = replace(task.recipe, generation=search)
    return changed


def _steps(prediction: Prediction) -> int:
    assert prediction.num_steps is not None
    return prediction.num_steps


def _value(task: Task, predictions: Sequence[Prediction], examples: Sequence[Example]) -> float:
    name = task.metrics[0]
    value = task.score([prediction.text for prediction in predictions], examples)[name].value
    if value != value:
        raise InputError(f"{name} is not a number on these examples; tune by another one with evaluation.metrics=[...]")
    return value
