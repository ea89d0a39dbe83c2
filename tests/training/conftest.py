"""Small corpora and recipes that train in a second."""

import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from depthwise.config import Recipe, parse_recipe
from depthwise.training.checkpoints import checkpoints

PATIENCE = 600
"""Seconds after which a process has failed; far more than it needs, since other tests keep the cores busy."""
WORDS = ["red", "blue", "green", "warm", "cold", "wet", "dry", "old", "new", "big"]


def write_labelled(path: Path, num: int, seed: int) -> None:
    """The label of a text is its colour, which stands anywhere in it."""
    draw = random.Random(seed)
    lines = []
    for _ in range(num):
        colour = draw.choice(WORDS[:3])
        others = draw.choices(WORDS[3:], k=draw.randint(1, 6))
        others.insert(draw.randrange(len(others) + 1), colour)
        lines.append(f"{colour}\t{' '.join(others)}")
    path.write_text("\n".join(lines) + "\n")


def write_parallel(prefix: Path, num: int, seed: int) -> None:
    """The translation of a text is its words in capitals, backwards."""
    draw = random.Random(seed)
    texts = [draw.choices(WORDS, k=draw.randint(1, 6)) for _ in range(num)]
    prefix.with_name(prefix.name + ".aa").write_text("".join(" ".join(text) + "\n" for text in texts))
    prefix.with_name(prefix.name + ".bb").write_text("".join(" ".join(reversed(text)).upper() + "\n" for text in texts))


STACK: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "ffn_width": 32, "dropout": 0.2}


@pytest.fixture
def classification(tmp_path: Path) -> dict[str, Any]:
    write_labelled(tmp_path / "train.tsv", 120, seed=0)
    write_labelled(tmp_path / "valid.tsv", 40, seed=1)
    write_labelled(tmp_path / "test.tsv", 40, seed=2)
    return {
        "task": "text_classification",
        "data": {
            **{split: str(tmp_path / f"{split}.tsv") for split in ("train", "valid", "test")},
            "cache": str(tmp_path / "cache"),
        },
        "tokenizer": {"kind": "word", "vocab_size": 50},
        "model": {
            "width": 16,
            "encoder": {**STACK, "mixer": "dynamicconv", "kernel_sizes": 3, "dropconnect": 0.1, "norm": "pre"},
        },
        "training": {
            "optimizer": {"kind": "adam", "lr": 1e-2},
            "schedule": {"kind": "inverse_sqrt", "warmup": 5},
            "batch_tokens": 64,
            "max_updates": 24,
            "log_every": 4,
            "validate_every": 10,
        },
    }


@pytest.fixture
def translation(tmp_path: Path) -> dict[str, Any]:
    for seed, split in enumerate(("train", "valid", "test")):
        write_parallel(tmp_path / split, 120 if split == "train" else 30, seed)
    side = {**STACK, "mixer": "lightconv", "kernel_sizes": 3}
    return {
        "task": "translation",
        "data": {
            **{split: str(tmp_path / split) for split in ("train", "valid", "test")},
            **{"source": "aa", "target": "bb", "cache": str(tmp_path / "cache")},
        },
        "tokenizer": {"vocab_size": 80},
        "model": {"width": 16, "encoder": side, "decoder": side},
        "training": {
            "optimizer": {"kind": "adam", "lr": 1e-2},
            "schedule": {"kind": "inverse_sqrt", "warmup": 5},
            "label_smoothing": 0.1,
            "batch_tokens": 96,
            "max_updates": 12,
            "log_every": 3,
        },
        "generation": {"num_beams": 2},
    }


def recipe_of(options: dict[str, Any], **training: Any) -> Recipe:
    """A recipe with some options of training changed."""
    return parse_recipe({**options, "training": {**options["training"], **training}})


def await_checkpoint(process: subprocess.Popen[Any], run: Path) -> None:
    """Until a training in another process has written its first checkpoint."""
    deadline = time.monotonic() + PATIENCE
    while not checkpoints(run):
        assert process.poll() is None, "it ended before its first checkpoint"
        assert time.monotonic() < deadline
        time.sleep(0.02)
