"""Tagging and question answering, trained: they learn, they go on bit by bit, and the commands take them."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from depthwise.cli.main import app
from depthwise.config import recipe_yaml
from depthwise.training.run import train

from .conftest import STACK, WORDS, recipe_of
from .test_resume import assert_same_run, interrupted_at

MODEL = {"width": 16, "encoder": {**STACK, "dropout": 0.05, "mixer": "dynamicconv", "kernel_sizes": 3, "norm": "pre"}}
TRAINING = {
    "optimizer": {"kind": "adam", "lr": 2e-2},
    "schedule": {"kind": "inverse_sqrt", "warmup": 5},
    "batch_tokens": 128,
    "max_updates": 40,
    "log_every": 10,
    "validate_every": 20,
    "select": "best",
}


def write_tagged(path: Path, num: int, seed: int) -> None:
    """Colours are entities; two in a row are one."""
    draw = random.Random(seed)
    lines = []
    for _ in range(num):
        inside = False
        for word in draw.choices(WORDS, k=draw.randint(2, 7)):
            is_colour = word in WORDS[:3]
            lines.append(f"{word} {'O' if not is_colour else 'I-COL' if inside else 'B-COL'}")
            inside = is_colour
        lines.append("")
    path.write_text("\n".join(lines) + "\n")


def write_questions(path: Path, num: int, seed: int) -> None:
    """The answer is the colour of the context, and there is none where there is no colour."""
    draw = random.Random(seed)
    paragraphs = []
    for number in range(num):
        words = draw.choices(WORDS[3:], k=draw.randint(3, 14))
        colour = draw.choice(WORDS[:3]) if number % 3 else None
        if colour:
            words.insert(draw.randrange(len(words)), colour)
        context = " ".join(words)
        answers = [{"text": colour, "answer_start": context.index(colour)}] if colour else []
        entry = {"id": str(number), "question": "which", "answers": answers, "is_impossible": not answers}
        paragraphs.append({"context": context, "qas": [entry]})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


@pytest.fixture
def tagging(tmp_path: Path) -> dict[str, Any]:
    for seed, split in enumerate(("train", "valid", "test")):
        write_tagged(tmp_path / f"{split}.txt", 120 if split == "train" else 30, seed)
    data = {split: str(tmp_path / f"{split}.txt") for split in ("train", "valid", "test")}
    tokenizer = {"kind": "word", "vocab_size": 50}
    return {"task": "tagging", "data": data, "tokenizer": tokenizer, "model": MODEL, "training": TRAINING}


@pytest.fixture
def answering(tmp_path: Path) -> dict[str, Any]:
    for seed, split in enumerate(("train", "valid", "test")):
        write_questions(tmp_path / f"{split}.json", 120 if split == "train" else 30, seed)
    data = {split: str(tmp_path / f"{split}.json") for split in ("train", "valid", "test")}
    data |= {"max_tokens": 10, "stride": 3, "max_question_tokens": 4}
    tokenizer = {"kind": "word", "vocab_size": 50}
    return {"task": "question_answering", "data": data, "tokenizer": tokenizer, "model": MODEL, "training": TRAINING}


@pytest.mark.parametrize("kind", ["tagging", "answering"])
def test_an_interrupted_run_goes_on_bit_by_bit(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(request.getfixturevalue(kind), max_updates=12, log_every=4, validate_every=10)
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupted_at(patch, 7, signal.SIGINT)
        assert train(recipe, tmp_path / "parts").interrupted == signal.SIGINT
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if "valid_f1" in line] == [10, 12]


def ask(*arguments: str, **options: Any) -> str:
    result = CliRunner().invoke(app, list(arguments), **options)
    assert result.exit_code == 0, result.output
    return result.stdout


def scores(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads(ask("evaluate", str(folder), "--json"))["metrics"]
    return found


def test_tagging_by_commands(tagging: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe_of(tagging, max_updates=80)))
    run = tmp_path / "run"
    ask("train", str(tmp_path / "recipe.yaml"), "--out", str(run))
    found = scores(run)
    assert found["f1"] > 90
    assert found["accuracy"] > 90
    lines = ask("predict", str(run), "-", input="warm red cold\n\nold blue\n").split("\n")
    assert lines == ["O B-COL O", "", "O B-COL", ""]
    assert (run / "results" / "test.predictions.txt").read_text().count("\n") == 30
    probability = float(ask("predict", str(run), "-", "--score", input="warm red cold\tO B-COL O\n"))
    assert -1 < probability < 0


def test_answering_by_commands(answering: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe_of(answering)))
    run = tmp_path / "run"
    ask("train", str(tmp_path / "recipe.yaml"), "--out", str(run))
    found = scores(run)
    assert found["f1"] > 80
    nothing = tmp_path / "nothing.txt"
    nothing.write_text("\n" * 30)
    silent = json.loads(ask("evaluate", str(run), "--json", "--predictions", str(nothing)))["metrics"]
    assert silent["f1"] == pytest.approx(100 / 3)
    lines = ask("predict", str(run), "-", input="which\twarm red cold\nwhich\twarm cold dry\n").split("\n")
    assert lines == ["red", "", ""]
    before = json.loads(ask("evaluate", str(run), "--split", "valid", "--json"))["metrics"]["f1"]
    ask("tune", str(run))
    chosen = json.loads((run / "results" / "tune.json").read_text())
    after = json.loads(ask("evaluate", str(run), "--split", "valid", "--json"))
    assert after["metrics"]["f1"] >= before
    assert after["settings"]["generation"]["null_threshold"] == chosen["chosen_search"]["null_threshold"]
    refused = CliRunner().invoke(app, ["predict", str(run), "-", "--score"], input="a\tb\tc\n")
    assert "has no probability; leave --score out" in str(refused.exception)
