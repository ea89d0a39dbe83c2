"""Running text: lines as WikiText counts them, and rows that predict every token exactly once."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depthwise.data import StoreOptions, TokenStore, build_store
from depthwise.data.collate import IGNORED
from depthwise.data.language import (
    BlockOptions,
    LanguageCollator,
    PlainText,
    TokenBlocks,
    TokenLines,
    num_words,
    stream_of,
)
from depthwise.data.lines import LineReport, LineRules
from depthwise.data.rows import TextRows
from depthwise.data.tokenizers import TokenizerOptions, train_tokenizer
from depthwise.errors import ConfigError, DataError

TEXT = " \n = Homarus = \n \n Homarus , known as <unk> lobster . \n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "train.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def stored(path: Path, options: TokenizerOptions, empty_lines: str = "keep") -> tuple[TokenStore, Any]:
    corpus = PlainText(path, empty_lines)
    texts = (text for example in corpus.examples(LineReport()) for text in example.texts)
    tokenizer = train_tokenizer(texts, options)
    return build_store(corpus, [tokenizer], StoreOptions(), path.parent / "cache"), tokenizer


def test_lines(path: Path) -> None:
    examples = list(PlainText(path).examples(LineReport()))
    assert [example.texts[0].strip() for example in examples] == [
        "",
        "= Homarus =",
        "",
        "Homarus , known as <unk> lobster .",
    ]
    assert [example.line for example in PlainText(path, "skip").examples(LineReport())] == [2, 4]
    assert PlainText(path).identity() != PlainText(path, "skip").identity()
    assert (PlainText(path).num_lines(), PlainText(path).num_texts, PlainText(path).name) == (4, 1, str(path))
    assert num_words(PlainText(path), LineRules()) == 10 + 4
    assert num_words(PlainText(path, "skip"), LineRules()) == 10 + 2


def test_faults_are_still_faults(path: Path) -> None:
    path.write_bytes(b"good\n\nb\xffd\n")
    with pytest.raises(DataError, match=r"train\.txt:3: byte 2 of the line is not UTF-8"):
        list(PlainText(path).examples(LineReport()))
    report = LineReport(LineRules("skip"))
    assert [example.texts[0] for example in PlainText(path).examples(report)] == ["good", ""]
    assert report.counts == {"bad_utf8": 1}


def test_the_word_stream_of_wikitext(path: Path) -> None:
    """Words, ``<unk>`` as the special token that it is, and an end for every line, also the empty ones."""
    store, tokenizer = stored(path, TokenizerOptions("word", 50, pretokenized=True))
    stream = stream_of(store)
    assert tokenizer.convert_ids_to_tokens(stream.tolist()) == [
        "</s>",
        *("=", "Homarus", "=", "</s>"),
        "</s>",
        *("Homarus", ",", "known", "as", "<unk>", "lobster", ".", "</s>"),
    ]
    assert len(stream) == num_words(PlainText(path), LineRules())
    assert tokenizer.unk_token_id in stream


def test_the_character_stream(path: Path) -> None:
    store, tokenizer = stored(path, TokenizerOptions("char", 50))
    tokens = tokenizer.convert_ids_to_tokens(stream_of(store).tolist())
    # an empty line is kept as such, whatever blanks it had
    assert "".join("\n" if token == "</s>" else token for token in tokens) == TEXT.replace(" \n \n", " \n\n")[1:]


@given(st.integers(0, 60), st.integers(2, 15), st.data())
def test_every_token_is_predicted_exactly_once(num_tokens: int, block: int, data: st.DataObject) -> None:
    context = data.draw(st.integers(1, block - 1))
    stream = np.arange(100, 100 + num_tokens, dtype=np.uint16)
    blocks = TokenBlocks(stream, 7, BlockOptions(block, context))
    rows = [blocks[number] for number in range(len(blocks))]
    whole = [7, *stream.tolist()]
    predicted: list[int] = []
    for row in rows:
        ids = row.ids.tolist()
        place = whole.index(ids[0])
        assert ids == whole[place : place + len(ids)]
        assert len(ids) <= block
        assert len(ids) > row.num_context
        predicted += ids[row.num_context :]
    assert predicted == stream.tolist()
    assert blocks.lengths()[:, 0].tolist() == [len(row.ids) for row in rows]
    assert all(len(row.ids) == block for row in rows[:-1])
    assert [row.num_context for row in rows] == ([1] + [context] * (len(rows) - 1) if num_tokens else [])


def test_labels_are_what_a_model_predicts() -> None:
    """A model that moves labels itself is asked for every token once, however rows are batched."""
    blocks = TokenBlocks(np.arange(10, 33), 2, BlockOptions(8, 3))
    batch = LanguageCollator(pad_id=1)([blocks[number] for number in (*range(len(blocks)), ~0)])
    labels = batch["labels"][:, 1:]
    assert sorted(labels[labels != IGNORED].tolist()) == list(range(10, 33))
    assert (batch["labels"][:, 0] == IGNORED).all()
    assert (batch["labels"][-1] == IGNORED).all()
    counted = batch["labels"] != IGNORED
    assert torch.equal(batch["labels"][counted], batch["input_ids"][counted])
    assert (batch["input_ids"][batch["attention_mask"] == 0] == 1).all()
    assert blocks[~0].ignored
    with pytest.raises(IndexError, match="block 5 of 5"):
        blocks[5]


def test_blocks_of_a_store(path: Path) -> None:
    store, _ = stored(path, TokenizerOptions("word", 50, pretokenized=True))
    blocks = TokenBlocks.of_texts(store, 2, BlockOptions(6))
    assert np.concatenate([blocks[number].ids[1:] for number in range(len(blocks))]).tolist() == (
        stream_of(store).tolist()
    )
    again = pickle.loads(pickle.dumps(blocks))
    assert isinstance(again.tokens, np.memmap), "the stream stays on disk in other processes"
    assert again.tokens.filename == blocks.tokens.filename
    assert (again[1].ids.tolist(), again.report) == (blocks[1].ids.tolist(), store.report)


def test_lines_of_a_store(path: Path) -> None:
    store, tokenizer = stored(path, TokenizerOptions("word", 50, pretokenized=True), "skip")
    lines = TokenLines(store, tokenizer.eos_token_id, BlockOptions(20))
    assert lines.lengths()[:, 0].tolist() == [len(lines[0].ids), len(lines[1].ids)] == [5, 9]
    assert lines[0].ids.tolist() == [2, *tokenizer("= Homarus =")["input_ids"]]
    assert (len(lines), lines[1].num_context, lines[~1].ignored, lines[~1].index) == (2, 1, True, 1)


@given(st.lists(st.integers(1, 20), max_size=8), st.integers(2, 9), st.data())
def test_every_token_of_a_line_is_predicted_exactly_once(sizes: list[int], block: int, data: st.DataObject) -> None:
    context = data.draw(st.integers(1, block - 1))
    ends = np.cumsum([100, *sizes])
    texts = TextRows([np.arange(*ends[line : line + 2]) for line in range(len(sizes))], range(len(sizes)))
    lines = TokenLines(texts, 7, BlockOptions(block, context))
    rows = [lines[number] for number in range(len(lines))]
    assert [token for row in rows for token in row.ids[row.num_context :]] == list(range(100, ends[-1]))
    assert lines.lengths()[:, 0].tolist() == [len(row.ids) for row in rows]
    assert all(len(row.ids) <= block for row in rows)
    of_line = np.searchsorted(ends, [row.ids[-1] for row in rows], side="right")
    for row, line in zip(rows, of_line.tolist(), strict=True):  # what a row sees is a start token or its own line
        assert all(token == 7 or ends[line - 1] <= token < ends[line] for token in row.ids)
    assert stream_of(texts).tolist() == list(range(100, ends[-1]))


def test_options_are_checked() -> None:
    assert str(BlockOptions(512, 400)) == "blocks of 512 tokens, the first 400 of each for context only"
    for block, context, names in (
        (1, 1, ["block"]),
        (8, 8, ["context"]),
        (8, 0, ["context"]),
        (0, 0, ["block", "context"]),
    ):
        with pytest.raises(ConfigError) as caught:
            BlockOptions(block, context)
        assert [problem.option for problem in caught.value.problems] == names
    with pytest.raises(ConfigError, match='"drop" is none of keep, skip'):
        PlainText(Path("a"), "drop")
