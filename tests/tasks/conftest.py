"""Tiny tasks over tiny corpora."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from depthwise.config import parse_recipe
from depthwise.tasks import MultilingualTranslation, Summarization, TextClassification, Translation, open_task
from depthwise.tasks.sequence_to_sequence import SequenceToSequence

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


def with_generation(task: SequenceToSequence, **changes: Any) -> SequenceToSequence:
    """The same task that searches in another way."""
    changed = copy.copy(task)
    changed.recipe = replace(task.recipe, generation=replace(task.recipe.generation, **changes))
    return changed


PAIRS = {
    "en-xx": [("a b c", "C B A"), ("b", "B"), ("c c a b a", "A B A C C"), ("a", "A")],
    "en-yy": [("a b", "a a b b"), ("c", "c c")],
}


def multilingual_options(tmp_path: Path, **tokenizer: Any) -> dict[str, Any]:
    """Into one language in capitals and backwards, into the other with every word said twice."""
    for pair, sentences in PAIRS.items():
        source, target = pair.split("-")
        (tmp_path / f"t.{pair}.{source}").write_text("".join(f"{text}\n" for text, _ in sentences))
        (tmp_path / f"t.{pair}.{target}").write_text("".join(f"{text}\n" for _, text in sentences))
    files = {split: str(tmp_path / "t.{pair}") for split in ("train", "valid", "test")}
    return {
        "task": "multilingual_translation",
        "data": {**files, "pairs": ["en-xx", "en-yy"], "cache": str(tmp_path / "cache")},
        "tokenizer": {"kind": "word", "vocab_size": 30, **tokenizer},
        "model": {"width": 8, "encoder": STACK, "decoder": STACK},
        "training": TRAINING,
        "generation": {"num_beams": 2, "max_factor": 1.0, "max_extra": 2},
    }


def multilingual_of(tmp_path: Path, **tokenizer: Any) -> MultilingualTranslation:
    task = open_task(parse_recipe(multilingual_options(tmp_path, **tokenizer)), tmp_path / "run")
    assert isinstance(task, MultilingualTranslation)
    return task


SUMMARIES = [
    ("A dog ran. It ran far! Then it slept.", ["a dog slept", "the dog ran"]),
    ("Rain fell. People stayed in.", ["rain fell"]),
]


@pytest.fixture
def summarization(tmp_path: Path) -> Summarization:
    lines = [json.dumps({"text": text, "summary": summary}) for text, summary in SUMMARIES]
    (tmp_path / "s.jsonl").write_text("".join(f"{line}\n" for line in lines))
    recipe = parse_recipe(
        {
            "task": "summarization",
            "data": {
                **{split: str(tmp_path / "s.jsonl") for split in ("train", "test")},
                **{"source": "text", "target": "summary", "cache": str(tmp_path / "cache")},
                **{"max_source_tokens": 6, "max_target_tokens": 3},
            },
            "tokenizer": {"kind": "word", "vocab_size": 40, "lowercase": True},
            "model": {"width": 8, "encoder": STACK, "decoder": STACK},
            "training": TRAINING,
            "generation": {"num_beams": 2, "max_factor": 0.0, "max_extra": 8, "no_repeat_ngram": 3},
        }
    )
    task = open_task(recipe, tmp_path / "run")
    assert isinstance(task, Summarization)
    return task
