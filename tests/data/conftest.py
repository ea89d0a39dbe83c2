"""A small corpus of two sides and a tokenizer for it."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from depthwise.data import ParallelText, TokenizerOptions, train_tokenizer

WORDS = ["low", "lower", "lowest", "new", "newer", "wide", "wider", "größer", "don't", "end.", "Zug", "(so)", "3,5"]


def sentences(num: int, seed: int) -> list[str]:
    """Sentences of one to twelve words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(num)]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return sentences(300, seed=0)


@pytest.fixture
def write_parallel(tmp_path: Path) -> Callable[[int], ParallelText]:
    """Writes as many sentences as wanted to two files that correspond line by line."""

    def write(num: int) -> ParallelText:
        paths = tmp_path / "a.src", tmp_path / "a.tgt"
        for seed, path in enumerate(paths):
            path.write_text("".join(f"{line}\n" for line in sentences(num, seed)), encoding="utf-8")
        return ParallelText(*paths)

    return write


@pytest.fixture
def corpus(write_parallel: Callable[[int], ParallelText]) -> ParallelText:
    return write_parallel(100)


@pytest.fixture(scope="session")
def tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    return train_tokenizer(texts, TokenizerOptions("char", 100))
