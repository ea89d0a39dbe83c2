"""A corpus is tokenised once, streams through little memory, and its cache is whole or not there."""

import errno
import logging
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from depthwise.data import (
    Example,
    LabelledText,
    LineRules,
    ParallelText,
    StoreOptions,
    TokenizerOptions,
    TokenStore,
    build_store,
    building,
    train_tokenizer,
)
from depthwise.errors import ConfigError, DataError

SKIP = LineRules(on_bad_line="skip")


@pytest.fixture
def build(corpus: ParallelText, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> Callable[..., TokenStore]:
    """Builds the small corpus into a cache, with whatever is to be different."""

    def build(**changes: Any) -> TokenStore:
        given = {"corpus": corpus, "tokenizers": [tokenizer] * 2, "options": StoreOptions(), **changes}
        return build_store(**given, cache=tmp_path / "cache")

    return build


@pytest.fixture
def num_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many chunks were tokenised, as the length of a list."""
    calls: list[int] = []
    encoded = building._encoded

    def counting(chunk: list[Example], *rest: Any) -> Any:
        calls.append(len(chunk))
        return encoded(chunk, *rest)

    monkeypatch.setattr(building, "_encoded", counting)
    return calls


def test_holds_what_the_tokenizer_gives(
    build: Callable[..., TokenStore], corpus: ParallelText, tokenizer: PreTrainedTokenizerFast
) -> None:
    store = build()
    sides = [path.read_text(encoding="utf-8").splitlines() for path in (corpus.source, corpus.target)]
    assert len(store) == 100
    for index, texts in enumerate(zip(*sides, strict=True)):
        assert [ids.tolist() for ids in store[index].texts] == [tokenizer(text)["input_ids"] for text in texts]
    assert store.lengths().tolist() == [[len(ids) for ids in store[index].texts] for index in range(100)]


def test_order_is_kept_over_chunks(build: Callable[..., TokenStore], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build()
    monkeypatch.setattr(building, "CHUNK_LINES", 7)
    monkeypatch.setattr(building, "CHUNK_CHARACTERS", 300)
    pieces = build(options=StoreOptions(max_tokens=10_000))
    assert pieces.folder != whole.folder
    for name in ("text0.tokens", "text0.offsets", "text1.tokens", "text1.offsets", "lines"):
        assert (pieces.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_second_build_tokenises_nothing(
    build: Callable[..., TokenStore], corpus: ParallelText, num_calls: list[int], tmp_path: Path
) -> None:
    first = build()
    moved = tmp_path / "moved"
    moved.mkdir()
    elsewhere = ParallelText(corpus.source.rename(moved / "x"), corpus.target.rename(moved / "y"))
    again = build(corpus=elsewhere)
    assert len(num_calls) == 1
    assert again.folder == first.folder
    assert again.report == first.report


def test_how_the_tokenizer_padded_last_does_not_matter(
    build: Callable[..., TokenStore], tokenizer: PreTrainedTokenizerFast, num_calls: list[int]
) -> None:
    build()
    tokenizer(["a", "low"], padding=True, truncation=True, max_length=3)
    build()
    assert len(num_calls) == 1


def test_whatever_changes_the_result_builds_anew(
    build: Callable[..., TokenStore],
    corpus: ParallelText,
    tokenizer: PreTrainedTokenizerFast,
    texts: list[str],
    num_calls: list[int],
) -> None:
    folders = {build().folder}
    other = train_tokenizer(texts, TokenizerOptions("byte"))
    for changes in ({"tokenizers": [tokenizer, other]}, {"options": StoreOptions(max_tokens=20, rules=SKIP)}):
        folders.add(build(**changes).folder)
    corpus.target.write_text(corpus.target.read_text(encoding="utf-8").replace("low", "LOW", 1), encoding="utf-8")
    folders.add(build().folder)
    assert len(folders) == len(num_calls) == 4


def test_memory_does_not_grow_with_the_corpus(
    build: Callable[..., TokenStore], write_parallel: Callable[[int], ParallelText], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "CHUNK_LINES", 100)

    def peak(num_lines: int) -> int:
        corpus = write_parallel(num_lines)
        tracemalloc.start()
        store = build(corpus=corpus)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(store) == num_lines
        return size

    peak(200)  # what is loaded once is loaded now
    small, large = peak(500), peak(5000)
    assert large < 1.3 * small


def test_an_interrupted_build_leaves_nothing(
    build: Callable[..., TokenStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "CHUNK_LINES", 10)
    encoded = building._encoded

    def interrupted(chunk: list[Example], *rest: Any) -> Any:
        if chunk[0].line > 50:
            raise KeyboardInterrupt
        return encoded(chunk, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(building, "_encoded", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build()
    assert [path.name for path in (tmp_path / "cache").iterdir() if not path.name.endswith(".lock")] == []
    assert len(build()) == 100


SLOW_BUILD = """
import sys, time
from pathlib import Path
from depthwise.data import ParallelText, StoreOptions, build_store, building, load_tokenizer
folder = Path(sys.argv[1])
building.CHUNK_LINES = 10
encoded = building._encoded
def slowly(chunk, *rest):
    if chunk[0].line > 50:
        (folder / "halfway").touch()
        time.sleep(600)
    return encoded(chunk, *rest)
building._encoded = slowly
tokenizer = load_tokenizer(folder / "tokenizer")
build_store(ParallelText(folder / "a.src", folder / "a.tgt"), [tokenizer] * 2, StoreOptions(), folder / "cache")
"""


def test_a_killed_build_is_cleared_away(
    build: Callable[..., TokenStore], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    process = subprocess.Popen([sys.executable, "-c", SLOW_BUILD, str(tmp_path)])
    deadline = time.monotonic() + 60
    while not (tmp_path / "halfway").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    cache = tmp_path / "cache"
    folders = [path.name for path in cache.iterdir() if path.is_dir()]
    assert [name.startswith(".") for name in folders] == [True], "what the killed process left has no name of a store"
    store = build()
    assert len(store) == 100
    assert [path for path in cache.iterdir() if path.is_dir()] == [store.folder]


@pytest.mark.parametrize("harm", ["cut", "flipped", "missing", "garbled meta", "no meta"])
def test_a_damaged_store_is_named_and_built_again(
    build: Callable[..., TokenStore], num_calls: list[int], caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    store = build()
    path = store.folder / ("meta.json" if "meta" in harm else "text1.tokens")
    whole = path.read_bytes()
    if harm in ("missing", "no meta"):
        path.unlink()
    elif harm == "flipped":
        path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    else:
        path.write_bytes(whole[:-10])
    if harm != "flipped":
        with pytest.raises(DataError, match=r"damaged.*; remove .* to tokenise again"):
            TokenStore(store.folder)
    with caplog.at_level(logging.WARNING):
        again = build()
    assert f"{store.folder} is damaged (" in caplog.text
    assert "is tokenised again" in caplog.text
    assert (again.folder, len(again), len(num_calls)) == (store.folder, 100, 2)
    assert path.read_bytes() == whole
    assert sorted(entry.name for entry in store.folder.parent.iterdir() if entry.is_dir()) == [store.folder.name]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_full_disk(
    build: Callable[..., TokenStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(building._Writer, "_add_text", full)
    with pytest.raises(DataError, match=f"cannot hold the tokenised corpus: {os.strerror(number)}; free space or give"):
        build()
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_too_long_texts_are_left_out_or_cut(build: Callable[..., TokenStore], tokenizer: Any) -> None:
    whole = build()
    longest = whole.lengths().max(axis=1)
    num_long = int((longest > 20).sum())
    skipped = build(options=StoreOptions(max_tokens=20))
    assert len(skipped) == 100 - num_long == skipped.report.num_kept
    assert skipped.report.counts == {"too_many_tokens": num_long}
    assert [skipped.line(index) for index in range(len(skipped))] == [
        index + 1 for index in range(100) if longest[index] <= 20
    ]
    assert "tokens, more than max_tokens=20" in skipped.report.first[0].message
    cut = build(options=StoreOptions(max_tokens=20, too_long="cut"))
    assert (len(cut), cut.report.num_cut, cut.report.counts) == (100, num_long, {})
    assert f"{num_long} cut short" in cut.report.summary()
    for index in range(100):
        for full, short in zip(whole[index].texts, cut[index].texts, strict=True):
            expected = full.tolist() if len(full) <= 20 else [*full[:19], tokenizer.eos_token_id]
            assert short.tolist() == expected


def test_each_text_has_its_own_limit(build: Callable[..., TokenStore]) -> None:
    whole = build().lengths()
    limits = np.array([int(np.median(whole[:, 0])), int(np.median(whole[:, 1])) - 3])
    cut = build(options=StoreOptions(max_tokens=(int(limits[0]), int(limits[1])), too_long="cut"))
    assert cut.lengths().tolist() == np.minimum(whole, limits).tolist()
    assert cut.report.num_cut == int((whole > limits).any(axis=1).sum())
    target_only = build(options=StoreOptions(max_tokens=(None, int(limits[1]))))
    assert target_only.lengths().tolist() == whole[whole[:, 1] <= limits[1]].tolist()
    first = target_only.report.first[0]
    assert first.message == f"a text has {whole[first.line - 1, 1]} tokens, more than max_tokens={limits[1]}"


def labelled(path: Path, *lines: str) -> LabelledText:
    path.write_text("".join(f"{line}\n" for line in lines))
    return LabelledText(path)


def test_classes_are_sorted_and_kept_for_other_data(
    build: Callable[..., TokenStore], tokenizer: Any, tmp_path: Path
) -> None:
    train = labelled(tmp_path / "train.tsv", "10\ta", "9\tb", "x\tc", "10\td")
    store = build(corpus=train, tokenizers=[tokenizer], options=StoreOptions(label_kind="class"))
    assert store.label_names == ("9", "10", "x")
    assert store.labels().tolist() == [1, 0, 2, 1]
    known = StoreOptions(label_kind="class", label_names=store.label_names, rules=SKIP)
    test = build(corpus=labelled(tmp_path / "test.tsv", "x\ta"), tokenizers=[tokenizer], options=known)
    assert (test[0].label, test.label_names) == (2, store.label_names)
    strange = labelled(tmp_path / "strange.tsv", "x\ta", "y\tb")
    with pytest.raises(DataError, match=r'strange\.tsv:2: label "y" was never seen in training, which knows 9, 10, x;'):
        build(corpus=strange, tokenizers=[tokenizer], options=known)


def test_numbers(build: Callable[..., TokenStore], tokenizer: Any, tmp_path: Path) -> None:
    corpus = labelled(tmp_path / "a.tsv", "1.5\ta", "many\tb", "nan\tc", "-2\td")
    options = StoreOptions(label_kind="number", rules=SKIP)
    store = build(corpus=corpus, tokenizers=[tokenizer], options=options)
    assert store.labels().tolist() == [1.5, -2.0]
    assert store.report.counts == {"bad_label": 2}
    with pytest.raises(DataError, match=r'a\.tsv:2: label "many" is not a number; mend it, or set on_bad_line=skip'):
        build(corpus=corpus, tokenizers=[tokenizer], options=StoreOptions(label_kind="number"))


def test_corpora_that_cannot_be_used(build: Callable[..., TokenStore], tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.src:1: there is no label; name the field that holds it"):
        build(options=StoreOptions(label_kind="class"))
    bad = labelled(tmp_path / "a.tsv", "no tab", "none here")
    with pytest.raises(DataError, match=r"a\.tsv: no line can be used; 0 lines kept, 2 left out \(2 missing tab\)"):
        build(corpus=bad, tokenizers=[tokenizer], options=StoreOptions(rules=SKIP))


def test_options_are_checked_together() -> None:
    with pytest.raises(ConfigError) as caught:
        StoreOptions(max_tokens=1, too_long="drop", label_kind="classes")
    assert [problem.option for problem in caught.value.problems] == ["max_tokens", "too_long", "label_kind"]
    with pytest.raises(ConfigError, match="1 leaves nothing beside the end"):
        StoreOptions(max_tokens=(20, 1))


def test_those_who_want_the_same_store_wait_for_the_first(
    build: Callable[..., TokenStore], num_calls: list[int]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: build(), range(4)))
    assert len(num_calls) == 1
    assert len({store.folder for store in stores}) == 1


def test_streams_are_not_read_ahead() -> None:
    """Chunks are made from what was read, not from the whole."""

    def endless() -> Iterator[Example]:
        while True:
            yield Example(("x" * 1000,), None, "a", 1)

    chunk = next(building._chunks(endless()))
    assert len(chunk) == building.CHUNK_CHARACTERS // 1000
