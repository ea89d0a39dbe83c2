"""Batches of similar length, answers in the order of the questions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from depthwise.config import SequenceExitConfig
from depthwise.data import Row
from depthwise.depth import build_policy
from depthwise.engine.decoding import Decoding
from depthwise.errors import InputError
from depthwise.evaluation import load_run, predict_all, predict_rows, predicting, score_rows
from depthwise.tasks import Prediction, Task
from depthwise.tasks.searching import search_by_model, searched_by

MakeRun = Callable[..., Path]


class ScriptedTask:
    """Answers a row by its first id, and remembers the batches it was asked for."""

    def __init__(self, batch_tokens: int, num_beams: int = 1, batch_rows: int | None = None) -> None:
        self.recipe = SimpleNamespace(
            evaluation=SimpleNamespace(batch_tokens=batch_tokens, batch_rows=batch_rows),
            generation=SimpleNamespace(num_beams=num_beams),
        )
        self.asked: list[list[int]] = []
        self.model_class = SimpleNamespace(needs=("encoder", "decoder"))

    def row_lengths(self, rows: Sequence[Row]) -> Any:
        return np.array([[len(row.texts[0])] for row in rows])

    def collate(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([row.texts[0][0] for row in rows])}

    predictions = Task.predictions

    def predict(self, model: Any, batch: Mapping[str, torch.Tensor]) -> list[Prediction]:
        self.asked.append(batch["input_ids"].tolist())
        return [Prediction(str(first)) for first in self.asked[-1]]


def scripted_engine(vocab_size: int = 10) -> Any:
    model = SimpleNamespace(device=torch.device("cpu"), config=SimpleNamespace(vocab_size=vocab_size, structure=None))
    return SimpleNamespace(model=model, executor=None, plans_sequences=False)


def rows_of(*lengths: int) -> list[Row]:
    """Rows whose first id is their number."""
    return [Row(number, (np.full(length, number),), None) for number, length in enumerate(lengths)]


def test_the_longest_first_within_the_budget_answered_in_order() -> None:
    task = ScriptedTask(batch_tokens=8)
    found = predict_rows(task, scripted_engine(), rows_of(2, 4, 1, 4, 2, 2))  # type: ignore[arg-type]
    assert [prediction.text for prediction in found] == ["0", "1", "2", "3", "4", "5"]
    assert [sorted(batch) for batch in task.asked] == [[1, 3], [0, 2, 4, 5]]


def test_rows_are_limited_by_the_scores_of_all_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicting, "SCORES_AT_ONCE", 100)
    task = ScriptedTask(batch_tokens=1000, num_beams=5)
    predict_rows(task, scripted_engine(vocab_size=10), rows_of(1, 1, 1, 1, 1))  # type: ignore[arg-type]
    assert [len(batch) for batch in task.asked] == [1, 2, 2]
    task.asked.clear()
    task.model_class = SimpleNamespace(needs=("encoder",))
    predict_rows(task, scripted_engine(), rows_of(1, 1, 1, 1, 1))  # type: ignore[arg-type]
    assert [len(batch) for batch in task.asked] == [5]


@pytest.mark.parametrize(("num_beams", "sizes"), [(1, [1, 4]), (2, [1, 2, 2]), (5, [1] * 5)])
def test_rows_are_limited_by_what_a_cpu_bears(
    monkeypatch: pytest.MonkeyPatch, num_beams: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(predicting, "HYPOTHESES_ON_A_CPU", 4)
    task = ScriptedTask(batch_tokens=1000, num_beams=num_beams)
    predict_rows(task, scripted_engine(), rows_of(1, 1, 1, 1, 1))  # type: ignore[arg-type]
    assert sorted(len(batch) for batch in task.asked) == sizes


def test_rows_are_limited_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    task = ScriptedTask(batch_tokens=1000, batch_rows=2)
    predict_rows(task, scripted_engine(), rows_of(1, 1, 1, 1, 1))  # type: ignore[arg-type]
    assert sorted(len(batch) for batch in task.asked) == [1, 2, 2]
    task.asked.clear()
    monkeypatch.setattr(predicting, "SCORES_AT_ONCE", 10)
    predict_rows(task, scripted_engine(vocab_size=10), rows_of(1, 1, 1))  # type: ignore[arg-type]
    assert [len(batch) for batch in task.asked] == [1, 1, 1]


def test_nothing_asked_nothing_answered() -> None:
    assert predict_rows(ScriptedTask(8), scripted_engine(), []) == []  # type: ignore[arg-type]


def test_too_little_memory_on_the_gpu() -> None:
    task = ScriptedTask(batch_tokens=8)

    def predict(model: Any, batch: Any) -> list[Prediction]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    task.predict = predict  # type: ignore[method-assign]
    message = "the GPU has too little memory for batches of 8 tokens; give fewer by evaluation.batch_tokens"
    with pytest.raises(InputError, match=message):
        predict_rows(task, scripted_engine(), rows_of(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("kind", ["translation", "classes"])
def test_answers_do_not_depend_on_the_batches(make_run: MakeRun, kind: str, num_beams: int) -> None:
    folder = make_run(kind)
    inputs = [("a b c",), ("b",), ("c c a b a",), ("a a a a b b b b c c",), ("a",)]
    beams = f"generation.num_beams={num_beams}"
    together, alone = (
        predict_all(load_run(folder, [beams, f"evaluation.batch_tokens={budget}"], device="cpu"), inputs)
        for budget in (1000, 1)
    )
    assert [(one.text, one.depths) for one in together] == [(one.text, one.depths) for one in alone]
    assert len({one.depths for one in together}) > 1


def test_depths_are_those_of_the_tokens_of_each_text(make_run: MakeRun) -> None:
    """Rows that end early in a batch are filled up there; that is no part of them."""
    run = load_run(make_run("translation"), ["generation.num_beams=1"], device="cpu", depth=1)
    for prediction in predict_all(run, [("a",), ("b a c a b c a b a",)]):
        assert set(prediction.depths) == {1}
        assert len(prediction.depths) == len(prediction.text.split()) + 1


def test_a_search_that_ends_before_its_limit_knows_no_limit(make_run: MakeRun) -> None:
    """Which is what ``num_steps`` is on record for."""
    folder, found = make_run("translation", seed=1), []
    for extra in (12, 18):
        changes = [f"generation.max_extra={extra}", "generation.length_penalty=0.0"]
        found.append(predict_all(load_run(folder, changes, device="cpu"), [("a b",), ("c a",)]))
    assert all(one.num_steps is not None and one.num_steps < 12 for one in found[0])
    assert found[0] == found[1]


def test_probabilities_of_all_labels_sum_up_to_one(make_run: MakeRun) -> None:
    run = load_run(make_run("classes"), device="cpu")
    rows = run.task.scored_rows([("a b",)] * 2, ["good", "bad"])
    assert sum(map(exp, score_rows(run.task, run.engine, rows))) == pytest.approx(1)


@torch.no_grad()
def test_probability_of_a_translation(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product of the probabilities of its tokens, end included, whatever the batches."""
    run = load_run(make_run("translation"), device="cpu")
    texts, outputs = [("a b c",), ("b",)], ["c", "c b a"]
    rows = run.task.scored_rows(texts, outputs)
    found = score_rows(run.task, run.engine, rows)
    expected = []
    for row in rows:
        source, target = (torch.tensor(ids)[None] for ids in row.texts)
        before = torch.cat([torch.tensor([[2]]), target[:, :-1]], dim=1)
        log_probs = run.model(source, decoder_input_ids=before).logits.log_softmax(-1)
        expected.append(log_probs.gather(-1, target[..., None]).sum().item())
    assert found == pytest.approx(expected)
    monkeypatch.setattr("depthwise.tasks.base.SCORES_AT_ONCE", 1)
    sizes: list[int] = []
    score = run.task.log_probabilities
    monkeypatch.setattr(
        run.task, "log_probabilities", lambda model, some: sizes.append(len(some)) or score(model, some)
    )
    assert score_rows(run.task, run.engine, rows) == pytest.approx(expected)
    assert sizes == [1, 1]


def test_rows_of_one_depth_are_generated_together(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where depths of whole texts are known in advance; what comes of a row is the same."""
    inputs = [("a b c",), ("b",), ("c c a b a",), ("a a a a b",), ("a",), ("b a b",), ("c",), ("c a",)]
    changes = ["generation.num_beams=1", "evaluation.batch_rows=2", "generation.max_extra=8"]
    run = load_run(make_run("leaving translation"), changes, device="cpu")
    run.model.double()
    policy = build_policy(SequenceExitConfig(), width=16, exits=(1, 2, 3, 4), has_source=True)
    torch.manual_seed(1)
    torch.nn.init.normal_(policy.classifier.weight, std=3)  # type: ignore[union-attr, arg-type]
    run.model.use_policy(policy.double())  # type: ignore[operator]
    rows, found = run.task.rows(inputs), []
    with searched_by(search_by_model):
        expected = [run.task.predictions(run.model, [row])[0] for row in rows]
    usual = Decoding.generate

    def noted(*given: Any, **options: Any) -> Any:
        found.append(usual(*given, **options).depths.amax(1).tolist())
        return usual(*given, **options)

    monkeypatch.setattr(Decoding, "generate", noted)
    predictions = predict_rows(run.task, run.engine, rows)
    assert [(one.text, one.depths) for one in predictions] == [(one.text, one.depths) for one in expected]
    depths = [max(one.depths) for one in expected]
    assert len(set(depths)) > 1
    assert [depth for batch in found for depth in batch] == sorted(depths, reverse=True)
    assert [len(batch) for batch in found] == [2, 2, 2, 2]
    found.clear()
    one_by_one = replace(run.task.recipe, evaluation=replace(run.task.recipe.evaluation, batch_rows=1))
    run.task.recipe = one_by_one
    predict_rows(run.task, run.engine, rows)
    assert [len(batch) for batch in found] == [1] * len(rows), "as they come, since whoever asks wants to see that"
