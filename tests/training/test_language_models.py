"""Language models of both kinds: trained, interrupted, judged, asked, and tuned for another task."""

import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from depthwise.cli.main import main
from depthwise.config import recipe_yaml
from depthwise.errors import InputError
from depthwise.evaluation import evaluate_run, load_run, opponent, read_evaluation, read_examples, score_predictions
from depthwise.evaluation.tuning import score_model
from depthwise.tasks import open_task
from depthwise.training.run import train

from .conftest import STACK, recipe_of, write_labelled
from .test_resume import assert_same_run, interrupted_at

SENTENCES = ["the red cat sat", "a warm dog ran", "the cold bird sang", "a blue fish swam", "the dog sat", "a cat ran"]


def write_text(path: Path, num: int, seed: int) -> None:
    """Stories in which the same sentences follow each other in the same order, from anywhere on."""
    draw = random.Random(seed)
    stories = []
    for _ in range(num):
        first = draw.randrange(len(SENTENCES))
        stories.append("".join(f"{SENTENCES[(first + step) % len(SENTENCES)]}\n" for step in range(4)))
    path.write_text("\n".join(stories))


def options_of(folder: Path, task: str, side: str, **model: Any) -> dict[str, Any]:
    for seed, split in enumerate(("train", "valid", "test")):
        write_text(folder / f"{split}.txt", 30 if split == "train" else 6, seed)
    stack = {**STACK, "mixer": "dynamicconv", "kernel_sizes": 3, "norm": "pre"}
    return {
        "task": task,
        "data": {
            **{split: str(folder / f"{split}.txt") for split in ("train", "valid", "test")},
            **{"cache": str(folder / "cache"), "max_tokens": 24},
        },
        "tokenizer": {"kind": "word", "vocab_size": 50},
        "model": {"width": 16, side: stack, **model},
        "training": {
            "optimizer": {"kind": "adam", "lr": 1e-2},
            "schedule": {"kind": "inverse_sqrt", "warmup": 5},
            "batch_tokens": 96,
            "max_updates": 12,
            "log_every": 4,
            "validate_every": 10,
        },
        "generation": {"num_beams": 1, "max_extra": 4},
    }


@pytest.fixture
def language(tmp_path: Path) -> dict[str, Any]:
    return options_of(tmp_path, "language_modeling", "decoder", adaptive={"cutoffs": [8], "factor": 2})


@pytest.fixture
def masked(tmp_path: Path) -> dict[str, Any]:
    return options_of(tmp_path, "masked_language_modeling", "encoder", sentence_order=True)


@pytest.mark.parametrize("kind", ["language", "masked"])
def test_an_interrupted_run_goes_on_bit_by_bit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Also in another epoch than the first, whose masks are others."""
    recipe = recipe_of(request.getfixturevalue(kind), max_updates=24)
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupted_at(patch, 17, signal.SIGINT)
        assert train(recipe, tmp_path / "parts").num_updates == 17
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["epoch"] > 1


def test_masks_do_not_depend_on_workers(masked: dict[str, Any], tmp_path: Path) -> None:
    train(recipe_of(masked), tmp_path / "alone")
    train(recipe_of(masked, workers=2), tmp_path / "helped")
    assert_same_run(tmp_path / "alone", tmp_path / "helped")


def test_masked_words_guessed_at_every_exit(tmp_path: Path) -> None:
    """Lines of training have no accuracy, which only validation counts; and a run goes on beyond its first line."""
    options = options_of(tmp_path, "masked_language_modeling", "encoder", exits={"heads": "tied"})
    options["model"]["encoder"]["num_layers"] = 2
    train(recipe_of(options), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if "nll_at_1" in line] == [4, 8, 12]
    assert not any("accuracy" in line for line in lines)
    assert all({"valid_accuracy", "valid_nll_at_2"} <= line.keys() for line in lines if "valid_nll" in line)


def test_a_language_model_learns(language: dict[str, Any], tmp_path: Path) -> None:
    train(recipe_of(language, max_updates=60), tmp_path / "run")
    run = load_run(tmp_path / "run", ["evaluation.metrics=[word_perplexity,perplexity,unigram_perplexity]"])
    found = evaluate_run(run, "test")
    assert found.metrics["perplexity"] is not None
    assert found.metrics["unigram_perplexity"] is not None
    assert found.metrics["perplexity"] < 0.7 * found.metrics["unigram_perplexity"]
    assert found.metrics["word_perplexity"] == found.metrics["perplexity"]  # a token is a word here
    assert found.scored_by == "likelihood"
    assert found.mean_depth == 1
    assert found.settings["generation"] is None
    assert read_evaluation(tmp_path / "run" / "results" / "test.json") == found
    assert sorted(path.name for path in (tmp_path / "run" / "results").iterdir()) == ["test.json"]
    examples = read_examples(run.task, "test")
    assert score_model(run.task, run.model, examples) == pytest.approx(found.metrics["word_perplexity"])
    again = evaluate_run(load_run(tmp_path / "run"), "valid")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert again.metrics["perplexity"] == pytest.approx(lines[-1]["valid_perplexity"], rel=1e-5)
    for ask in (
        lambda: score_predictions(run.task, "test", ["a"]),
        lambda: opponent(run.task, "test", examples, tmp_path / "run"),
    ):
        with pytest.raises(InputError, match="has no predictions to compare; evaluate each run by itself"):
            ask()


def test_another_metric_of_the_text_may_choose(language: dict[str, Any], tmp_path: Path) -> None:
    done = train(recipe_of(language, metric="word_perplexity", select="best"), tmp_path / "run")
    assert done.metric == "word_perplexity"
    assert done.best is not None
    (best,) = json.loads((tmp_path / "run" / "training.json").read_text())["averaged"]
    checkpoint = json.loads((tmp_path / "run" / f"checkpoint-{best}" / "progress.json").read_text())
    values = {entry["update"]: entry["value"] for entry in checkpoint["history"]}
    assert values[best] == done.best == min(values.values())


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["depthwise", *arguments])
    with pytest.raises(SystemExit) as raised:
        main()
    return int(raised.value.code or 0)


def test_from_the_command_line(
    masked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A masked model fills masks and gives fillings a probability; a language model does so with whole lines."""
    (tmp_path / "masked.yaml").write_text(recipe_yaml(recipe_of(masked, max_updates=60)))
    assert call(monkeypatch, "train", str(tmp_path / "masked.yaml"), "--out", str(tmp_path / "run")) == 0
    assert call(monkeypatch, "evaluate", str(tmp_path / "run")) == 0
    shown = capfd.readouterr().out
    assert "order_accuracy" in shown
    assert "rate:0.15 of tokens" in shown
    (tmp_path / "lines").write_text("the red <mask> sat\nnothing here\na warm <mask> ran\n")
    assert call(monkeypatch, "predict", str(tmp_path / "run"), str(tmp_path / "lines")) == 0
    found = capfd.readouterr()
    lines = found.out.split("\n")
    assert len(lines) == 4
    assert (len(lines[0].split()), lines[1], len(lines[2].split())) == (4, "", 4)
    assert "lines:2: the line has no answer: there is nothing to guess; write <mask>" in found.err
    (tmp_path / "scored").write_text("the red <mask> sat\tcat\nthe red <mask> sat\twarm\n")
    assert call(monkeypatch, "predict", str(tmp_path / "run"), str(tmp_path / "scored"), "--score") == 0
    right, wrong = map(float, capfd.readouterr().out.split())
    assert wrong < right < 0


def test_lines_are_continued_and_scored(
    language: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    train(recipe_of(language, max_updates=60), tmp_path / "run")
    capfd.readouterr()
    (tmp_path / "lines").write_text("the red cat\n\ncat the red\n")
    assert call(monkeypatch, "predict", str(tmp_path / "run"), str(tmp_path / "lines"), "--depths") == 0
    first, empty, _, _ = capfd.readouterr().out.split("\n")
    assert first.startswith("the red cat ")
    assert set(first.split("\t")[1].split()) == {"1"}
    assert empty == ""
    assert call(monkeypatch, "predict", str(tmp_path / "run"), str(tmp_path / "lines"), "--score") == 0
    likely, empty, unlikely, _ = capfd.readouterr().out.split("\n")
    assert float(unlikely) < float(likely) < 0
    assert empty == ""


@pytest.mark.parametrize("pooling", ["max_mean", "first_tanh"])
def test_a_masked_model_is_tuned_for_another_task(
    masked: dict[str, Any], tmp_path: Path, classification: dict[str, Any], pooling: str
) -> None:
    masked["model"]["pooling"] = pooling
    train(recipe_of(masked), tmp_path / "pretrained")
    write_labelled(tmp_path / "train.tsv", 40, seed=0)
    options = {**classification, "model": {"from": str(tmp_path / "pretrained")}, "tokenizer": {}}
    task = open_task(recipe_of(options), tmp_path / "nowhere")
    before, after = load_file(tmp_path / "pretrained" / "model.safetensors"), task.new_model().state_dict()
    shared = [name for name in before if name.startswith("model.")]
    assert len(shared) > 10
    assert all(torch.equal(before[name], after[name]) for name in shared)
    assert any("pooler" in name for name in shared) == (pooling == "first_tanh")
    assert {name for name in after if name not in before} == {"classifier.weight", "classifier.bias"}
    assert task.tokenizers.source.mask_token_id == len(task.tokenizers.source) - 1
    trained = train(recipe_of(options, max_updates=24), tmp_path / "further")
    assert trained.num_updates == 24
    assert evaluate_run(load_run(tmp_path / "further"), "test").metrics["accuracy"] is not None
