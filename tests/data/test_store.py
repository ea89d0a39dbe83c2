"""Stores open without loading, travel to other processes as a name, and give rows."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from depthwise.data import LabelledText, ParallelText, StoreOptions, TokenStore, build_store
from depthwise.data.store import token_type
from depthwise.errors import DataError


@pytest.fixture
def store(corpus: ParallelText, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> TokenStore:
    return build_store(corpus, [tokenizer] * 2, StoreOptions(), tmp_path / "cache")


def test_texts_stay_on_the_disk(store: TokenStore) -> None:
    (first, second), row = store[3].texts, store[3]
    for ids in (first, second):
        assert isinstance(ids, np.memmap)
        assert ids.dtype == np.uint16
    assert (row.index, row.label, row.ignored, store.line(3)) == (3, None, False, 4)
    assert store.vocab_size > first.max()


def test_a_store_travels_as_its_folder(store: TokenStore) -> None:
    packed = pickle.dumps(store)
    assert len(packed) < 500
    assert pickle.loads(packed)[7].texts[1].tolist() == store[7].texts[1].tolist()


def test_rows_to_be_ignored(store: TokenStore) -> None:
    row = store[~3]
    assert (row.index, row.ignored) == (3, True)
    assert row.texts[0].tolist() == store[3].texts[0].tolist()
    with pytest.raises(IndexError, match="example 100 of 100"):
        store[100]
    assert sum(1 for _ in store) == 100


def test_no_labels(store: TokenStore) -> None:
    with pytest.raises(DataError, match="was tokenised without labels; name the field that holds them"):
        store.labels()


def test_one_text(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("x\tlow\n")
    store = build_store(LabelledText(tmp_path / "a.tsv"), [tokenizer], StoreOptions(), tmp_path / "cache")
    assert (store.num_texts, store.lengths().shape, store.label_kind) == (1, (1, 1), None)


def test_folders_that_hold_no_store(store: TokenStore, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no tokenised corpus, or a damaged one; remove it to tokenise again"):
        TokenStore(tmp_path)
    path = store.folder / "meta.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps({**meta, "format": 0}))
    with pytest.raises(DataError, match="was written by another version; remove it to tokenise again"):
        TokenStore(store.folder)
    path.write_text(json.dumps({name: value for name, value in meta.items() if name != "num_texts"}))
    with pytest.raises(DataError, match=r"meta\.json is damaged \(KeyError\('num_texts'\)\); remove "):
        TokenStore(store.folder)
    path.write_text(json.dumps(meta))
    lines = store.folder / "lines"
    lines.write_bytes(lines.read_bytes()[:-8])
    with pytest.raises(DataError, match="is damaged: a file has not its size; remove the folder to tokenise again"):
        TokenStore(store.folder)


def test_ids_are_as_narrow_as_the_vocabulary_allows() -> None:
    assert [token_type(size).name for size in (65_536, 65_537)] == ["uint16", "int32"]
