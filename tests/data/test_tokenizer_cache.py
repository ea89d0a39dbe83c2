"""Tokenizers of the same text are trained once; what the cache holds is not taken on trust."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from depthwise.data import (
    LabelledText,
    LineRules,
    ParallelText,
    TokenizerOptions,
    Tokenizers,
    tokenizer_cache,
    train_tokenizers,
    trained_tokenizers,
)
from depthwise.data.building import tokenizer_identity
from depthwise.errors import DataError

OPTIONS = TokenizerOptions("bpe", 60)
RULES = LineRules()


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[TokenizerOptions]:
    """Options of every training."""
    trained: list[TokenizerOptions] = []

    def counting(corpus: Any, options: TokenizerOptions, *rest: Any, **named: Any) -> Tokenizers:
        trained.append(options)
        return train_tokenizers(corpus, options, *rest, **named)

    monkeypatch.setattr(tokenizer_cache, "train_tokenizers", counting)
    return trained


def identities(tokenizers: Tokenizers) -> tuple[str, str]:
    return tokenizer_identity(tokenizers.source), tokenizer_identity(tokenizers.target)


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("options", [OPTIONS, TokenizerOptions("word", 30, mask_token=True, first_token=True)])
def test_they_are_trained_once(
    corpus: ParallelText, tmp_path: Path, trainings: list[Any], joint: bool, options: TokenizerOptions
) -> None:
    expected = train_tokenizers(corpus, options, RULES, joint=joint)
    for _ in range(3):
        found = trained_tokenizers(corpus, options, RULES, joint=joint, cache=tmp_path / "cache")
        assert found.joint is joint
        assert identities(found) == identities(expected)
        assert found.source.special_tokens_map == expected.source.special_tokens_map
        assert found.source("ab c")["input_ids"] == expected.source("ab c")["input_ids"]
    assert trainings == [options]


def test_whatever_decides_them_is_part_of_the_key(tmp_path: Path, trainings: list[Any]) -> None:
    text = tmp_path / "train.tsv"
    text.write_text("x\tlow lower lowest\ny\tnew newer newest\n", encoding="utf-8")
    corpus, cache = LabelledText(text), tmp_path / "cache"

    def find(**changes: Any) -> Tokenizers:
        given = {"corpus": corpus, "options": OPTIONS, "rules": RULES, "joint": True, **changes}
        return trained_tokenizers(**given, cache=cache)

    find()
    find(options=replace(OPTIONS, vocab_size=50))
    find(rules=LineRules(max_chars=90))
    assert len(trainings) == 3
    text.write_text("x\tlow lower\ny\tnew newer newest wide\n", encoding="utf-8")
    find()
    assert len(trainings) == 4
    moved = tmp_path / "elsewhere.tsv"
    text.rename(moved)
    find(corpus=LabelledText(moved))
    assert len(trainings) == 4, "where files lie does not matter"


def test_damage_is_said_and_mended(
    corpus: ParallelText, tmp_path: Path, trainings: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    expected = identities(trained_tokenizers(corpus, OPTIONS, RULES, joint=True, cache=cache))
    (path,) = cache.glob("tokenizers-*/tokenizer.json")
    path.write_text(path.read_text(encoding="utf-8").replace("</s>", "</t>"), encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert identities(trained_tokenizers(corpus, OPTIONS, RULES, joint=True, cache=cache)) == expected
    assert (
        f"{path.parent} is damaged (tokenizer.json is not what was written); tokenizers are trained again"
        in caplog.text
    )
    assert len(trainings) == 2


def test_nothing_is_kept_of_a_training_that_failed(tmp_path: Path) -> None:
    empty, cache = tmp_path / "empty.tsv", tmp_path / "cache"
    empty.write_text("", encoding="utf-8")
    with pytest.raises(DataError):
        trained_tokenizers(LabelledText(empty), OPTIONS, RULES, joint=True, cache=cache)
    assert not list(cache.glob("tokenizers-*"))


def test_a_cache_that_cannot_be_written(corpus: ParallelText, tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("no folder", encoding="utf-8")
    with pytest.raises(DataError, match=r"cannot hold trained tokenizers: .*; free space or give another cache"):
        trained_tokenizers(corpus, OPTIONS, RULES, joint=True, cache=place)


def test_how_one_was_found_is_not_saved_with_it(corpus: ParallelText, tmp_path: Path) -> None:
    found = trained_tokenizers(corpus, OPTIONS, RULES, joint=True, cache=tmp_path / "cache")
    found.save(tmp_path / "run")
    assert "local" not in (tmp_path / "run" / "tokenizer_config.json").read_text(encoding="utf-8")
