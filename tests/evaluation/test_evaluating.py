"""Scores of runs and of given predictions."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.errors import DataError, InputError
from depthwise.evaluation import (
    Outcome,
    Timing,
    evaluate_run,
    evaluating,
    load_run,
    open_run,
    predict_all,
    read_evaluation,
    read_examples,
    score_predictions,
)
from depthwise.models.cost import ModelCost
from depthwise.tasks import Prediction

MakeRun = Callable[..., Path]
GOLD = ["good", "bad", "good", "bad", "good"]


def test_an_evaluation_is_that_of_the_predictions(make_run: MakeRun) -> None:
    folder = make_run("translation")
    run = load_run(folder, device="cpu")
    found = evaluate_run(run, "test")
    examples = read_examples(run.task, "test")
    predictions = predict_all(run, [example.texts[:1] for example in examples])
    assert list(found.predictions) == [prediction.text for prediction in predictions]
    scores = run.task.score(found.predictions, examples)
    assert found.metrics == {name: score.value for name, score in scores.items()}
    assert found.signatures["sacrebleu"].startswith("nrefs:1|case:mixed")
    assert (found.metric, found.examples, found.seed, found.split) == ("sacrebleu", 5, 1, "test")
    assert found.mean_depth == 2.0
    assert found.seconds > 0
    assert found.examples_per_second == pytest.approx(5 / found.seconds)
    num_tokens = sum(len(prediction.depths) for prediction in predictions)
    assert found.tokens_per_second == pytest.approx(num_tokens / found.seconds)
    assert found.settings["generation"]["num_beams"] == 2
    assert read_evaluation(folder / "results" / "test.json") == found


def test_a_classifier_counts_the_tokens_of_its_input(make_run: MakeRun) -> None:
    found = evaluate_run(load_run(make_run("classes"), device="cpu", depth=1), "valid")
    assert found.mean_depth == 1.0
    assert found.tokens_per_second == pytest.approx((2 + 3 + 3 + 1 + 6 + 5) / found.seconds)
    assert (found.settings["precision"], found.settings["depth"], found.settings["generation"]) == ("fp32", 1, None)
    assert set(found.metrics) == {"accuracy", "f1_macro"}


@pytest.mark.parametrize("kind", ["translation", "text"])
def test_several_turns_change_nothing_but_the_time(make_run: MakeRun, kind: str) -> None:
    folder = make_run(kind)
    once, thrice = (
        evaluate_run(load_run(folder, [f"evaluation.turns={turns}"], device="cpu"), "test") for turns in (1, 3)
    )
    for name in ("metrics", "predictions", "mean_depth", "token_layers", "flops"):
        assert getattr(once, name) == getattr(thrice, name)


def test_mean_depth_is_over_tokens() -> None:
    timing = Timing(1.0, None)
    assert Outcome({}, timing, num_tokens=6, token_layers=18, flops=0).mean_depth == 3.0
    assert Outcome({}, timing, num_tokens=0, token_layers=0, flops=0).mean_depth is None


def test_what_a_run_costs(make_run: MakeRun) -> None:
    """The sources have 4, 2, 6, 2 and 8 tokens with their ends."""
    run = load_run(make_run("translation"), device="cpu")
    found = evaluate_run(run, "test")
    cost = ModelCost(run.model.config.options)
    predictions = predict_all(run, [example.texts[:1] for example in read_examples(run.task, "test")])
    expected = [cost.decode(made.depths, size) for made, size in zip(predictions, (4, 2, 6, 2, 8), strict=True)]
    assert found.flops == sum(one.flops for one in expected)
    assert found.token_layers == sum(sum(made.depths) for made in predictions)


@pytest.mark.parametrize(("kind", "heads"), [("text", 16), ("masked text", 2)])
def test_what_likelihood_costs(make_run: MakeRun, kind: str, heads: int) -> None:
    """Text in one block with 15 tokens behind a start; of masked text, 2 of 15 tokens in 3 lines are scored."""
    run = load_run(make_run(kind), device="cpu")
    found = evaluate_run(run, "test")
    cost = ModelCost(run.model.config.options)
    stack = cost.decoder or cost.encoder
    assert stack is not None
    lengths = [16] if kind == "text" else [5, 3, 7]
    blocks = sum(stack.forward(length).flops for length in lengths)
    assert found.flops == blocks + heads * cost.head().flops
    assert (found.token_layers, found.mean_depth) == (2 * sum(lengths), 2.0)


def test_a_policy_is_on_record(make_run: MakeRun) -> None:
    folder = make_run("leaving classes")
    changes = ["policy.kind=patience", "policy.patience=1"]
    found = evaluate_run(load_run(folder, device="cpu", depth="policy", policy_changes=changes), "test")
    assert found.settings["policy"] == {"kind": "patience", "patience": 1, "tolerance": 0.1}
    assert found.settings["depth"] is None
    assert read_evaluation(folder / "results" / "test-patience-1.json") == found
    assert not (folder / "results" / "test.json").exists()


@pytest.mark.parametrize("kind", ["translation", "classes", "numbers", "tags", "text"])
def test_policies_by_which_nobody_leaves_are_the_full_model(make_run: MakeRun, kind: str) -> None:
    """Those that never look at an exit cost no more either."""
    folder = make_run(f"leaving {kind}")
    full = evaluate_run(load_run(folder, device="cpu"), "test")
    deepest = evaluate_run(load_run(folder, device="cpu", depth=4), "test")
    changes = ["policy.kind=confidence", "policy.threshold=2"]
    never = evaluate_run(load_run(folder, device="cpu", depth="policy", policy_changes=changes), "test")
    assert full.mean_depth == 4.0
    for found in (deepest, never):
        assert found.metrics == full.metrics
        assert found.predictions == full.predictions
        assert (found.mean_depth, found.token_layers, found.flops) == (4.0, full.token_layers, full.flops)


def test_given_predictions(make_run: MakeRun) -> None:
    folder = make_run("classes")
    (folder / "model.safetensors").unlink()
    task = open_run(folder)
    assert score_predictions(task, "test", GOLD).metrics == {"accuracy": 100.0, "f1_macro": 100.0}
    found = score_predictions(task, "test", ["good"] * 5)
    assert found.metrics["accuracy"] == 60.0
    assert (found.mean_depth, found.weights_digest, found.examples_per_second) == (None, None, None)
    assert not (folder / "results").exists()


def test_too_few_predictions(make_run: MakeRun) -> None:
    task = open_run(make_run("classes"))
    with pytest.raises(DataError, match=r"there are 4 predictions for 5 examples of .*labelled.tsv; give one on each"):
        score_predictions(task, "test", GOLD[:4])


def test_predictions_for_the_lines_of_a_file_with_bad_ones(
    make_run: MakeRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One for each good line, or one for each line."""
    data = tmp_path / "test.tsv"
    data.write_text("good\ta b\nno tab\nbad\tc\n")
    task = open_run(make_run("classes"), [f"data.test={data}", "data.on_bad_line=skip"])
    with caplog.at_level(logging.WARNING):
        assert score_predictions(task, "test", ["good", "bad"]).metrics["accuracy"] == 100.0
    assert "2 lines kept, 1 left out (1 missing tab)" in caplog.text
    assert score_predictions(task, "test", ["good", "whatever", "bad"]).metrics["accuracy"] == 100.0


def test_data_without_examples(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("no tab\n")
    task = open_run(make_run("classes"), [f"data.test={tmp_path / 'test.tsv'}", "data.on_bad_line=skip"])
    with pytest.raises(DataError, match=r"no examples in .*test.tsv; give data.test=FILE with at least one"):
        read_examples(task, "test")


@pytest.mark.parametrize(
    ("kind", "line", "changes", "error", "message"),
    [
        ("classes", "ugly\ta b", [], DataError, 'label "ugly" was never seen in training'),
        ("numbers", "many\ta b", [], InputError, "predictions and labels must be numbers"),
        ("numbers", "0.5\ta b", [], InputError, "all labels are the same"),
    ],
)
def test_what_cannot_be_scored_is_not_predicted(
    make_run: MakeRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    line: str,
    changes: list[str],
    error: type[Exception],
    message: str,
) -> None:
    data = tmp_path / "test.tsv"
    data.write_text(f"{line}\n")
    run = load_run(make_run(kind), [f"data.test={data}", *changes], device="cpu")

    def forbidden(*arguments: Any) -> None:
        raise AssertionError("the model was asked")

    monkeypatch.setattr(evaluating, "warm_up", forbidden)
    with pytest.raises(error, match=message):
        evaluate_run(run, "test")


def test_regression(make_run: MakeRun) -> None:
    found = evaluate_run(load_run(make_run("numbers"), ["evaluation.metrics=[squared_error,pearson]"]), "test")
    assert found.metric == "squared_error"
    numbers = torch.tensor([float(text) for text in found.predictions])
    expected = ((numbers - torch.tensor([0.5, 1.5, -2.0, 3.0])) ** 2).mean().item()
    assert found.value == pytest.approx(expected, rel=1e-3)


def test_infinite_scores_are_none_in_json(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run("numbers")
    run = load_run(folder, ["evaluation.metrics=[squared_error]"], device="cpu")
    monkeypatch.setattr(run.task, "predict", lambda model, batch: [Prediction("1e200")] * len(batch["input_ids"]))
    with pytest.warns(RuntimeWarning, match="overflow"):
        assert evaluate_run(run, "test").metrics == {"squared_error": None}
    assert json.loads((folder / "results" / "test.json").read_text())["metrics"] == {"squared_error": None}
