"""Choosing how a translation is searched for: the length penalty and the most tokens it may have.

Each length penalty needs a search of its own, since the penalty decides which hypotheses are kept. The limit on the
length does not: a source whose search ended before it reached the limit would have ended the same way under any limit
beyond that step, so only the others are searched again.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from depthwise.config import SearchConfig
from depthwise.data import Example
from depthwise.errors import InputError
from depthwise.evaluation.predicting import predict_rows
from depthwise.evaluation.validation import likelihood_scores
from depthwise.tasks import LikelihoodTask, Prediction, Task, Translation

LENGTH_PENALTIES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
MAX_LENGTHS = ((1.0, 5), (1.2, 10), (1.5, 20), (2.0, 50))
"""Pairs of ``max_factor`` and ``max_extra``."""


@dataclass(frozen=True)
class Trial:
    """The score of one way to search, and how many sources had to be searched for it."""

    search: SearchConfig
    value: float
    num_searched: int


def score_model(task: Task, model: PreTrainedModel, examples: Sequence[Example]) -> float:
    """The metric that is quoted."""
    if isinstance(task, LikelihoodTask):
        return likelihood_scores(task, model, examples)[task.metrics[0]].value
    rows = task.rows([task.inputs_of(example) for example in examples])
    return _value(task, predict_rows(task, model, rows), examples)


def tune_search(
    task: Translation,
    model: PreTrainedModel,
    examples: Sequence[Example],
    length_penalties: Sequence[float] = LENGTH_PENALTIES,
    max_lengths: Sequence[tuple[float, int]] = MAX_LENGTHS,
) -> list[Trial]:
    """Every length penalty with every limit; the present ones are among them, and their trial comes first.

    A greedy search knows no penalty, so that only the limits are tried.
    """
    present = task.recipe.generation
    penalties = sorted({present.length_penalty, *(length_penalties if present.num_beams > 1 else ())})
    limits = sorted({(present.max_factor, present.max_extra), *max_lengths})
    rows = task.rows([task.inputs_of(example) for example in examples])
    lengths = torch.tensor([len(row.texts[0]) for row in rows])
    trials = []
    for penalty in penalties:
        free: dict[int, Prediction] = {}  # predictions in which no limit had a part
        for factor, extra in limits:
            search = replace(present, length_penalty=penalty, max_factor=factor, max_extra=extra)
            tried = with_search(task, search)
            most: list[int] = tried.target_limits(lengths).tolist()
            found = {place: kept for place, kept in free.items() if _steps(kept) < most[place]}
            missing = [place for place in range(len(rows)) if place not in found]
            fresh = dict(zip(missing, predict_rows(tried, model, [rows[place] for place in missing]), strict=True))
            free.update({place: new for place, new in fresh.items() if _steps(new) < most[place]})
            found.update(fresh)
            predictions = [found[place] for place in range(len(rows))]
            trials.append(Trial(search, _value(tried, predictions, examples), len(missing)))
    return sorted(trials, key=lambda trial: trial.search != present)


def best_trial(task: Task, trials: Sequence[Trial]) -> Trial:
    """The best; the present one, which comes first, unless another is truly better."""
    best = trials[0]
    for trial in trials[1:]:
        if task.is_better(task.metrics[0], trial.value, best.value):
            best = trial
    return best


def with_search(task: Translation, search: SearchConfig) -> Translation:
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
