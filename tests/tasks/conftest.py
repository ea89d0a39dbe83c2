"""Tiny tasks over tiny corpora."""

from pathlib import Path
from typing import Any

import pytest

from depthwise.config import parse_recipe
from depthwise.tasks import TextClassification, Translation, open_task

STACK: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "ffn_width": 16, "max_positions": 12}
TRAINING: dict[str, Any] = {"max_updates": 1, "label_smoothing": 0.1}
SENTENCES = [("a b c", "c b a"), ("b", "b"), ("c c a b a", "a b a c c"), ("a", "a")]


@pytest.fixture
def translation(tmp_path: Path) -> Translation:
    (tmp_path / "train.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in SENTENCES))
    recipe = parse_recipe(
        {
            "task": "translation",
            "data": {"train": str(tmp_path / "train.tsv"), "test": str(tmp_path / "train.tsv")},
            "tokenizer": {"kind": "word", "vocab_size": 20},
            "model": {"width": 8, "encoder": STACK, "decoder": STACK},
            "training": TRAINING,
            "generation": {"num_beams": 2, "max_factor": 1.0, "max_extra": 2},
        }
    )
    task = open_task(recipe, tmp_path / "run")
    assert isinstance(task, Translation)
    return task


def classification_of(tmp_path: Path, lines: list[str], **data: Any) -> TextClassification:
    (tmp_path / "train.tsv").write_text("".join(f"{line}\n" for line in lines))
    files = {split: str(tmp_path / "train.tsv") for split in ("train", "test")}
    recipe = parse_recipe(
        {
            "task": "text_classification",
            "data": {**files, "cache": str(tmp_path / "cache"), **data},
            "tokenizer": {"kind": "word", "vocab_size": 20},
            "model": {"width": 8, "encoder": STACK},
            "training": TRAINING,
        }
    )
    task = open_task(recipe, tmp_path / "run")
    assert isinstance(task, TextClassification)
    return task


@pytest.fixture
def classification(tmp_path: Path) -> TextClassification:
    return classification_of(tmp_path, ["good\ta b", "bad\tb c c", "good\ta a", "bad\tc"])
