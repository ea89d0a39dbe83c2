"""Tables of words on disk: the same when read again, and refused where they do not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depthwise.config import WordDepthsConfig
from depthwise.depth.mutual_information import WordCounter, split_documents
from depthwise.depth.word_table import WordTable, word_table
from depthwise.depth.word_table_file import FILE, load_word_table, save_word_table
from depthwise.errors import CheckpointError

LINES = [("great film ,", "good one"), ("bad film", "bad\tone"), ("great \u2028 x", "good one"), ("é film", "bad\tone")]


def made(**options: Any) -> WordTable:
    counter = WordCounter()
    counter.add(split_documents(LINES))
    return word_table(counter.counts(), WordDepthsConfig(**options), num_layers=4, tokenizer="digest")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"estimator": "frequency"},
        {"estimator": "random", "matched": "words", "seed": 3},
        {"estimator": "fixed", "depth": 2},
    ],
    ids=str,
)
def test_what_is_saved_is_loaded(tmp_path: Path, options: dict[str, Any]) -> None:
    table = made(**options)
    save_word_table(table, tmp_path)
    found = load_word_table(tmp_path, tokenizer="digest", num_layers=4)
    assert (found.options, found.unseen_depth, found.tokenizer) == (table.options, table.unseen_depth, "digest")
    assert found.counts.labels == table.counts.labels
    assert found.counts.documents.tolist() == table.counts.documents.tolist()
    for word in (*table.counts.words, "nobody"):
        assert found.depth_of(word) == table.depth_of(word)
        place, other = table.place_of(word), found.place_of(word)
        if place is None or other is None:
            assert place is other
            continue
        assert found.counts.present[other].tolist() == table.counts.present[place].tolist()
        if table.information is not None:
            assert found.information is not None
            assert found.information[other] == table.information[place]
    assert found.summary() == table.summary()


def test_words_that_tell_most_come_first(tmp_path: Path) -> None:
    save_word_table(made(), tmp_path)
    found = load_word_table(tmp_path, tokenizer="digest", num_layers=4)
    assert found.values is not None
    assert (np.diff(found.values) >= 0).all()
    assert found.counts.words[0] == "great"


def test_another_tokenizer_or_number_of_layers(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"has no {FILE}, by which its words run"):
        load_word_table(tmp_path, tokenizer="digest", num_layers=4)
    save_word_table(made(), tmp_path)
    with pytest.raises(CheckpointError, match="was made for another tokenizer; use the run's own, or train again"):
        load_word_table(tmp_path, tokenizer="other", num_layers=4)
    with pytest.raises(CheckpointError, match="was made for 4 layers, but the model has 6; train again"):
        load_word_table(tmp_path, tokenizer="digest", num_layers=6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# {", "{", "its beginning or its end is missing"),
        ('"format": 1', '"format": 7', "it was written by another version"),
        ('"format": 1, ', "", "damaged or of another version"),
        ("great\t1\t", "great\t9\t", "line 3 is no word with a depth from 1 to 4"),
        ("great\t1\t", "great\t", "line 3 is no word with a depth from 1 to 4"),
        ("great\t1\t", "great\tdeep\t", "damaged or of another version"),
        ("great\t1\t", "bad\t1\t", "a word stands there twice"),
        ('"words": 6', '"words": 16', "it has 6 of 16 words"),
    ],
)
def test_a_damaged_table(tmp_path: Path, old: str, new: str, message: str) -> None:
    save_word_table(made(), tmp_path)
    text = (tmp_path / FILE).read_text()
    assert text.count(old) == 1
    (tmp_path / FILE).write_text(text.replace(old, new))
    with pytest.raises(CheckpointError, match=message):
        load_word_table(tmp_path, tokenizer="digest", num_layers=4)


def test_half_a_table(tmp_path: Path) -> None:
    save_word_table(made(), tmp_path)
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content[:-4])
    with pytest.raises(CheckpointError, match="its beginning or its end is missing"):
        load_word_table(tmp_path, tokenizer="digest", num_layers=4)
    (tmp_path / FILE).write_bytes(b"\xff" + content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_word_table(tmp_path, tokenizer="digest", num_layers=4)
