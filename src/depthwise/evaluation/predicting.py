"""Running a model over many inputs: in batches of similar length, the longest first, answered in the order asked."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from depthwise.data import BatchOptions, Row, TokenBatches
from depthwise.data.progress import shown
from depthwise.engine import Engine
from depthwise.errors import InputError
from depthwise.evaluation.depths import recorded_sources
from depthwise.evaluation.runs import Run
from depthwise.evaluation.searching import EngineSearch
from depthwise.kernels.attention import for_changing_lengths
from depthwise.models.executing import executed_by
from depthwise.tasks import Prediction, Task
from depthwise.tasks.base import SCORES_AT_ONCE
from depthwise.tasks.searching import searched_by

WARM_UP_ROWS = 4
POOLED = 8
"""Batches that are taken together where the depth of a text is known before it is generated, to be parted by depth."""

HYPOTHESES_ON_A_CPU = 512
"""Texts, times beams, that a CPU decodes at a time, at most: more are hardly faster and take gigabytes."""

Answer = TypeVar("Answer")


def predict_all(run: Run, inputs: Sequence[tuple[str, ...]]) -> list[Prediction]:
    """What the model says about every input, in their order."""
    return predict_rows(run.task, run.engine, run.task.rows(inputs))


def predict_rows(task: Task, engine: Engine, rows: Sequence[Row], *, shows_progress: bool = True) -> list[Prediction]:
    """The same for rows, which must be short enough for the model."""
    room = _room(task, engine.model)
    is_pooled = engine.plans_sequences and room.max_rows != 1
    batches = _sorted(task, rows, _times(room, POOLED) if is_pooled else room)
    taken = shown(batches, "predicting", len(batches)) if shows_progress else batches
    with run_by(engine, room if is_pooled else None):
        return _answers(rows, taken, lambda some: _predicted(task, engine.model, some))


def score_rows(task: Task, engine: Engine, rows: Sequence[Row]) -> list[float]:
    """log p(output | input) of rows that have both."""
    batches = _sorted(task, rows, BatchOptions(max_tokens=task.tokens_at_once, order="sorted"))
    with run_by(engine):
        return _answers(rows, batches, lambda some: task.log_probabilities(engine.model, some))


def warm_up(task: Task, engine: Engine, rows: Sequence[Row]) -> None:
    """Have done what is done only once (libraries loaded, kernels compiled, memory asked for) before time is taken."""
    batches = prediction_batches(task, engine.model, rows)
    if batches:
        first = batches[0] if engine.model.device.type == "cuda" else batches[0][:WARM_UP_ROWS]
        with run_by(engine):
            _predicted(task, engine.model, [rows[index] for index in first])


@contextmanager
def run_by(engine: Engine, room: BatchOptions | None = None) -> Iterator[None]:
    """Within it, what tasks ask of the engine's model is computed by the engine: encoders, and searches for text.

    With ``room``, batches are larger than that and the engine parts them.
    """
    with executed_by(engine.executor), searched_by(EngineSearch(engine, room)):
        yield


def prediction_batches(task: Task, model: PreTrainedModel, rows: Sequence[Row]) -> list[list[int]]:
    """Which rows go together, the longest first."""
    return _sorted(task, rows, _room(task, model))


def _room(task: Task, model: PreTrainedModel) -> BatchOptions:
    asked = task.recipe.evaluation
    most = asked.batch_rows
    if "decoder" in task.model_class.needs:
        hypotheses = SCORES_AT_ONCE // model.config.vocab_size
        if model.device.type == "cpu":
            hypotheses = min(hypotheses, HYPOTHESES_ON_A_CPU)
        bearable = max(1, hypotheses // task.recipe.generation.num_beams)
        most = bearable if most is None else min(most, bearable)
    return BatchOptions(max_tokens=asked.batch_tokens, max_rows=most, order="sorted")


def _times(room: BatchOptions, count: int) -> BatchOptions:
    """Room for so many batches."""
    tokens, rows = (None if limit is None else count * limit for limit in (room.max_tokens, room.max_rows))
    return replace(room, max_tokens=tokens, max_rows=rows)


def _sorted(task: Task, rows: Sequence[Row], options: BatchOptions) -> list[list[int]]:
    return list(TokenBatches(task.row_lengths(rows), options)) if rows else []


def _answers(
    rows: Sequence[Row],
    batches: Iterable[list[int]],
    answer: Callable[[list[Row]], list[Answer]],
) -> list[Answer]:
    found: dict[int, Answer] = {}
    with for_changing_lengths():
        for batch in batches:
            found.update(zip(batch, answer([rows[index] for index in batch]), strict=True))
    return [found[index] for index in range(len(rows))]


def _predicted(task: Task, model: PreTrainedModel, rows: Sequence[Row]) -> list[Prediction]:
    """What the model says of a batch, with the depths of sources where an encoder below a decoder decides on them."""
    with within_memory(task):
        if model.config.structure is None or model.config.decoder is None:
            return task.predictions(model, rows)
        with recorded_sources(model.model.encoder) as depths_of:
            found = task.predictions(model, rows)
    return [
        replace(prediction, source_depths=depths_of(row.texts[0])) for row, prediction in zip(rows, found, strict=True)
    ]


@contextmanager
def within_memory(task: Task) -> Iterator[None]:
    """Says what to do where a GPU has too little memory for a batch."""
    try:
        yield
    except torch.OutOfMemoryError:
        budget = task.recipe.evaluation.batch_tokens
        raise InputError(
            f"the GPU has too little memory for batches of {budget:,} tokens; give fewer by evaluation.batch_tokens"
        ) from None
