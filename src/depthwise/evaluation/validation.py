"""Metrics of a model in training on validation data."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from depthwise.data import BatchOptions, Example, LineReport, TokenBatches
from depthwise.data.progress import shown
from depthwise.engine import Engine
from depthwise.evaluation.predicting import predict_rows
from depthwise.metrics import Score
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.shapes import Tensor
from depthwise.tasks import Examples, LikelihoodTask, Task


@torch.no_grad()
def validate(
    task: Task,
    model: PreTrainedModel,
    store: Examples,
    *,
    batch_tokens: int,
    rank: int = 0,
    world_size: int = 1,
    shows_progress: bool = False,
    only_rows: int | None = None,
) -> tuple[dict[str, float], int]:
    """The totals of a task over a store (``loss`` among them), and how many items they are over, of this process.

    The model is left in the mode that it was in. Batches are sorted by length, so that the result does not depend on
    the seed. With ``only_rows`` it is over no more than these of the first batch, as a warm-up.
    """
    was_training = model.training
    model.eval()
    options = BatchOptions(max_tokens=batch_tokens, order="sorted")
    batches: Sequence[list[int]] | TokenBatches = task.batches_of(store, options, rank=rank, world_size=world_size)
    if only_rows is not None:
        batches = [batch[:only_rows] for batch in islice(batches, 1)]
    sums: dict[str, Tensor] = {}
    num_items = 0
    loader: Iterable[Any] = DataLoader(store, batch_sampler=batches, collate_fn=task.collate)  # type: ignore[arg-type]
    for batch in shown(loader, "evaluating", len(batches)) if shows_progress else loader:
        num_here = task.num_items(batch)
        on_device = {name: value.to(model.device, non_blocking=True) for name, value in batch.items()}
        losses = task.losses(model, on_device, 1)
        for name, value in {"loss": losses.loss, **losses.totals}.items():
            sums[name] = sums[name] + value.double() if name in sums else value.double()
        num_items += num_here
    model.train(was_training)
    return {name: float(value) for name, value in sums.items()}, num_items


def validation_metrics(task: Task, totals: Sequence[tuple[dict[str, float], int]]) -> dict[str, float]:
    """The metrics of a validation from what each process found."""
    names = totals[0][0]
    sums = {name: sum(of_process[name] for of_process, _ in totals) for name in names}
    return task.validation_metrics(sums, sum(num_items for _, num_items in totals))


def likelihood_scores(task: LikelihoodTask, model: PreTrainedModel, examples: Sequence[Example]) -> dict[str, Score]:
    """The metrics of a task that is scored by likelihood."""
    totals, num_items = validate(task, model, task.judged(examples), batch_tokens=task.tokens_at_once)
    return task.likelihood_scores(totals, num_items, examples)


def score_split(task: Task, model: PreTrainedModel, split: str, metric: str) -> float:
    """A metric of a whole split that needs more than totals: predictions, as BLEU does, or the text itself."""
    task = copy.copy(task)
    task.recipe = replace(task.recipe, evaluation=replace(task.recipe.evaluation, metrics=(metric,)))
    examples = list(task.corpus(split).examples(LineReport(task.rules)))
    if isinstance(task, LikelihoodTask):
        scores = likelihood_scores(task, model, examples)
    else:
        assert isinstance(model, DepthwisePreTrainedModel)
        was_training = model.training
        rows = task.rows([task.inputs_of(example) for example in examples])
        engine = Engine(model, graphs=False)  # weights are others the next time: what is recorded would serve once
        predictions = predict_rows(task, engine, rows, shows_progress=False)
        model.train(was_training)
        scores = task.score([prediction.text for prediction in predictions], examples)
    return scores[metric].value
