"""The starters on tiny made-up data: they learn what can be learned, for every form of labels and texts."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from depthwise.cli.main import app

Starter = Callable[..., dict[str, float]]
FILLERS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}
SIZES = {"train": 120, "valid": 24, "test": 24}
QUICK = ["model.width=32", "training.max_epochs=12"]


@pytest.fixture
def starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starter:
    """Trains a starter on lines that a function draws, and gives its metrics on other lines."""
    monkeypatch.setenv("DEPTHWISE_CACHE", str(tmp_path / "cache"))

    def run(name: str, line: Callable[[random.Random], str], *changes: str) -> dict[str, float]:
        generator = random.Random(0)
        for split, size in SIZES.items():
            text = "".join(f"{line(generator)}\n" for _ in range(size))
            (tmp_path / f"{split}.tsv").write_text(text, encoding="utf-8")
        data = [f"data.{split}={tmp_path / split}.tsv" for split in SIZES]
        out = tmp_path / "run"
        trained = CliRunner().invoke(app, ["train", name, *data, *changes, "--out", str(out)])
        assert trained.exit_code == 0, trained.output
        assert (out / "recipe.given.yaml").read_text().startswith(f"# depthwise train {name} data.train=")
        assert json.loads((out / "training.json").read_text())["hardware"]
        judged = CliRunner().invoke(app, ["evaluate", str(out), "--json"])
        assert judged.exit_code == 0, judged.output
        metrics: dict[str, float] = json.loads(judged.stdout)["metrics"]
        return metrics

    return run


def noise(generator: random.Random, num: int = 5) -> list[str]:
    return generator.choices(FILLERS, k=num)


def with_keyword(generator: random.Random, keyword: str) -> str:
    words = [*noise(generator), keyword]
    generator.shuffle(words)
    return " ".join(words)


def value_of(metric: object) -> float:
    return float(metric["value"] if isinstance(metric, dict) else metric)  # type: ignore[arg-type]


def test_a_keyword_decides_the_class(starter: Starter) -> None:
    keywords = {"good": "happy", "bad": "sad", "so-so": "dull"}

    def line(generator: random.Random) -> str:
        label = generator.choice(list(keywords))
        return f"{label}\t{with_keyword(generator, keywords[label])}"

    assert value_of(starter("start/classify", line, *QUICK)["accuracy"]) == 100


def test_a_rare_class_is_found_too(starter: Starter) -> None:
    def line(generator: random.Random) -> str:
        label, keyword = generator.choices([("usual", "calm"), ("rare", "alarm")], [9, 1])[0]
        return f"{label}\t{with_keyword(generator, keyword)}"

    assert value_of(starter("start/classify", line, *QUICK, "training.max_epochs=30")["f1_macro"]) == 100


def test_a_pair_of_texts(starter: Starter) -> None:
    """The class stands in the second text."""

    def line(generator: random.Random) -> str:
        label = generator.choice(["yes", "no"])
        return f"{label}\t{' '.join(noise(generator))}\t{with_keyword(generator, label)}"

    assert value_of(starter("start/classify", line, *QUICK)["accuracy"]) == 100


def test_numbers_are_estimated(starter: Starter) -> None:
    values = {"awful": -1.0, "poor": 0.0, "fine": 1.5, "great": 3.0}

    def line(generator: random.Random) -> str:
        keyword = generator.choice(list(values))
        return f"{values[keyword]}\t{with_keyword(generator, keyword)}"

    assert value_of(starter("start/classify", line, *QUICK, "data.labels=number")["pearson"]) > 95


def test_words_are_translated(starter: Starter) -> None:
    def line(generator: random.Random) -> str:
        words = generator.choices(list(WORDS), k=generator.randint(1, 3))
        return f"{' '.join(words)}\t{' '.join(WORDS[word] for word in words)}"

    changes = [
        "model.width=64",
        "model.encoder.num_layers=1",
        "model.decoder.num_layers=1",
        "training.batch_tokens=128",
    ]
    metrics = starter("start/translate", line, *changes, "evaluation.metrics=[exact_match]")
    assert value_of(metrics["exact_match"]) > 60  # whole lines of up to three words; guessing gives 7
