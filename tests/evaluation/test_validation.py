"""Totals of a split: over one process or several, in whatever mode the model was."""

from collections.abc import Callable
from pathlib import Path

import pytest

from depthwise.evaluation import evaluate_run, load_run
from depthwise.evaluation.validation import score_split, validate, validation_metrics

MakeRun = Callable[..., Path]


@pytest.mark.parametrize("kind", ["translation", "classes", "numbers"])
def test_processes_together_find_what_one_finds(make_run: MakeRun, kind: str) -> None:
    run = load_run(make_run(kind), device="cpu")
    store = run.task.examples("valid")
    alone = validate(run.task, run.model, store, batch_tokens=1000)
    shares = [validate(run.task, run.model, store, batch_tokens=8, rank=rank, world_size=3) for rank in range(3)]
    assert sum(num_items for _, num_items in shares) == alone[1]
    found = validation_metrics(run.task, shares)
    assert found == pytest.approx(validation_metrics(run.task, [alone]), rel=1e-5)
    assert tuple(found) == run.task.validation_names()


@pytest.mark.parametrize("is_training", [False, True])
def test_dropout_has_no_part_and_the_mode_stays(make_run: MakeRun, is_training: bool) -> None:
    run = load_run(make_run("translation"), device="cpu")
    evaluated = evaluate_run(run, "valid").metrics["chrf"]
    totals, num_items = validate(run.task, run.model, run.task.examples("valid"), batch_tokens=1000)
    for dropout in (module for module in run.model.modules() if hasattr(module, "dropout")):
        dropout.dropout = 0.9
    run.model.train(is_training)
    again = validate(run.task, run.model, run.task.examples("valid"), batch_tokens=1000)
    assert again == (pytest.approx(totals), num_items)
    assert run.model.training == is_training
    assert score_split(run.task, run.model, "valid", "chrf") == evaluated
    assert run.model.training == is_training
