"""Multilingual translation and summarisation from training to answers, also in two goes."""

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

SIDE = {**STACK, "mixer": "lightconv", "kernel_sizes": 3}
MODEL: dict[str, Any] = {
    "model": {"width": 16, "encoder": SIDE, "decoder": SIDE},
    "training": {
        "optimizer": {"kind": "adam", "lr": 1e-2},
        "schedule": {"kind": "inverse_sqrt", "warmup": 5},
        "batch_tokens": 96,
        "max_updates": 10,
        "log_every": 3,
        "validate_every": 5,
    },
}


@pytest.fixture
def multilingual(tmp_path: Path) -> dict[str, Any]:
    """Into one language backwards, into the other, of which there is less, in capitals."""
    draw = random.Random(0)
    for split, num in (("train", 80), ("valid", 12), ("test", 12)):
        for pair, share in (("en-xx", 1), ("en-yy", 4)):
            texts = [draw.choices(WORDS, k=draw.randint(1, 5)) for _ in range(num // share)]
            targets = [text[::-1] if pair == "en-xx" else [word.upper() for word in text] for text in texts]
            folder = tmp_path / pair
            folder.mkdir(exist_ok=True)
            for language, side in zip(pair.split("-"), (texts, targets), strict=True):
                (folder / f"{split}.{language}").write_text("".join(" ".join(text) + "\n" for text in side))
    return {
        "task": "multilingual_translation",
        "data": {
            **{split: str(tmp_path / "{pair}" / split) for split in ("train", "valid", "test")},
            **{"pairs": ["en-xx", "en-yy"], "temperature": 5.0, "cache": str(tmp_path / "cache")},
        },
        "tokenizer": {"kind": "word", "vocab_size": 80, "language_token": "decoder"},
        **MODEL,
        "generation": {"num_beams": 2},
    }


@pytest.fixture
def summarization(tmp_path: Path) -> dict[str, Any]:
    """A summary is the first word of each of two sentences."""
    draw = random.Random(0)
    for split, num in (("train", 60), ("valid", 12), ("test", 12)):
        lines = []
        for _ in range(num):
            sentences = [draw.choices(WORDS, k=draw.randint(2, 5)) for _ in range(2)]
            text = " ".join(" ".join(words) + "." for words in sentences)
            summary = " ".join(words[0] for words in sentences)
            lines.append(json.dumps({"text": text, "summary": [summary, summary.upper()]}))
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return {
        "task": "summarization",
        "data": {
            **{split: str(tmp_path / f"{split}.jsonl") for split in ("train", "valid", "test")},
            **{"source": "text", "target": "summary", "cache": str(tmp_path / "cache")},
            **{"max_source_tokens": 10, "max_target_tokens": 3},
        },
        "tokenizer": {"kind": "word", "vocab_size": 80},
        **MODEL,
        "generation": {"num_beams": 2, "max_factor": 0.0, "max_extra": 6, "no_repeat_ngram": 3},
    }


@pytest.mark.parametrize("name", ["multilingual", "summarization"])
def test_it_goes_on_bit_by_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    recipe = recipe_of(request.getfixturevalue(name))
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupted_at(patch, 4, signal.SIGINT)
        assert train(recipe, tmp_path / "parts").interrupted == signal.SIGINT
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def run(*arguments: str, given: str | None = None) -> str:
    result = CliRunner().invoke(app, arguments, input=given)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_multilingual_translation_by_command(multilingual: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(recipe_yaml(recipe_of(multilingual, max_updates=3)))
    folder = str(tmp_path / "run")
    run("train", str(tmp_path / "mine.yaml"), "--out", folder)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {"valid_nll/mean", "valid_nll/en-xx", "valid_nll/en-yy"} <= set(lines[-1])
    found = json.loads(run("evaluate", folder, "--json"))
    assert found["metric"] == "sacrebleu"
    assert {"sacrebleu", "sacrebleu/en-xx", "sacrebleu/en-yy", "chrf/en-yy"} <= set(found["metrics"])
    assert found["examples"] == 12 + 3
    only = json.loads(run("evaluate", folder, "--json", "data.pairs=[en-yy]"))
    assert (only["examples"], "sacrebleu/en-xx" in only["metrics"]) == (3, False)
    told = run("predict", folder, "-", given="yy\tred old\nxx\tred old\nred old\nzz\tred\n").split("\n")
    assert told[2:] == ["", "", ""]
    assert run("predict", folder, "-", "generation.target=yy", given="red old\n").split("\n")[0] == told[0]
    scores = run("predict", folder, "-", "--score", "generation.target=yy", given="red old\tRED OLD\n")
    assert float(scores) < 0


def test_summarization_by_command(summarization: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(recipe_yaml(recipe_of(summarization, max_updates=3)))
    folder = str(tmp_path / "run")
    run("train", str(tmp_path / "mine.yaml"), "--out", folder)
    found = json.loads(run("evaluate", folder, "--json"))
    assert found["metric"] == "rouge1"
    assert found["metrics"]["lead/rouge1"] > 0
    assert "nrefs:2" in found["signatures"]["rouge1"]
    assert len(run("predict", folder, "-", given="red old. new.\nbig\n").splitlines()) == 2
    run("tune", folder, "generation.num_beams=1")
    tuned = json.loads((tmp_path / "run" / "results" / "tune.json").read_text())
    assert {(trial["max_factor"], trial["max_extra"]) for trial in tuned["search"]} >= {(0.0, 6), (0.0, 100)}
    warm = recipe_of({**summarization, "model": {"from": folder}}, max_updates=1)
    assert train(warm, tmp_path / "further").num_updates == 1
