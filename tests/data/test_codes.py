"""Codes of subword-nmt segment as subword-nmt does."""

import io
import random
from pathlib import Path

import pytest
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from depthwise.data import load_tokenizer, tokenizer_from_codes, with_joiners
from depthwise.data.codes import read_codes
from depthwise.errors import DataError


@pytest.fixture(scope="module")
def codes(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty merges that subword-nmt learned."""
    path = tmp_path_factory.mktemp("codes") / "bpe.codes"
    with path.open("w", encoding="utf-8") as file:
        learn_bpe(io.StringIO("\n".join(texts)), file, 40)
    return path


def strange_lines() -> list[str]:
    """Words that no one learned from, with letters, blanks and marks in unusual places."""
    draw = random.Random(3)
    letters = [*"lowernstwidegrößZu(),.'35", " ", " ", "\u00a0", "@@", "</w>", "<unk>", "\t"]
    return ["".join(draw.choices(letters, k=40)) for _ in range(300)]


def test_segments_as_subword_nmt(codes: Path, texts: list[str], tmp_path: Path) -> None:
    lines = [*texts, *strange_lines(), "  low  lowest ", "a", "l", "lowlowlowlow"]
    tokenizer = tokenizer_from_codes(codes, lines)
    with codes.open(encoding="utf-8") as file:
        reference = BPE(file)
    for line in lines:
        pieces = tokenizer.convert_ids_to_tokens(tokenizer(line)["input_ids"])
        assert pieces[-1] == "</s>"
        assert " ".join(with_joiners(pieces[:-1])) == reference.segment(line)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded(lines)["input_ids"] == tokenizer(lines)["input_ids"]
    for line in texts:
        assert loaded.decode(loaded(line)["input_ids"], skip_special_tokens=True) == line


def test_types_are_those_that_occur(codes: Path, texts: list[str]) -> None:
    """A part of the text needs fewer types and is segmented as with all; words beside it come in smaller pieces."""
    part = ["wide new wider", "end. (so) wide"]
    everything, less = tokenizer_from_codes(codes, texts), tokenizer_from_codes(codes, part)
    assert len(less) < len(everything)
    assert [less.tokenize(line) for line in part] == [everything.tokenize(line) for line in part]
    met = {piece for line in part for piece in less.tokenize(line)}
    made_up = {piece for piece in less.get_vocab() if piece.startswith("madeupword")}
    assert len(less) % 8 == 0
    assert len(made_up) < 8
    for piece in set(less.get_vocab()) - met - {"<s>", "<pad>", "</s>", "<unk>"} - made_up:
        assert len(piece.removesuffix("</w>")) == 1 or any(piece in longer for longer in met)
    assert len(everything.tokenize("newer")) == 1
    pieces = less.tokenize("newer")
    assert len(pieces) > 1
    assert less.unk_token not in pieces


def test_equal_letters_are_merged_from_the_left(tmp_path: Path) -> None:
    (tmp_path / "codes").write_text("#version: 0.2\na a\naa a</w>\naa a\nb a\n")
    tokenizer = tokenizer_from_codes(tmp_path / "codes", ["aaaa aaa", "aaaab"])
    assert [with_joiners(tokenizer.tokenize(word)) for word in ("aaa", "aaaa", "aaaab")] == [
        ["aaa"],
        ["aaa@@", "a"],
        ["aa@@", "aa@@", "b"],
    ]
    assert "ba" not in tokenizer.get_vocab()


def test_unknown_letters_are_one_unknown_each(codes: Path) -> None:
    tokenizer = tokenizer_from_codes(codes)
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("ЖЖlow Ж")["input_ids"])
    assert with_joiners(pieces) == ["<unk>", "<unk>", "low", "<unk>", "</s>"]
    assert tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>"]) == [0, 1, 2, 3]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_first_of_equal_merges_counts_and_idle_ones_do_no_harm(tmp_path: Path, end: str) -> None:
    path = tmp_path / "codes"
    lines = ["#version: 0.2", "b c", "a b", "a b", "b c", "x</w> y", "zz z", "c </w>"]
    path.write_bytes("".join(line + end for line in lines).encode())
    assert read_codes(path) == [("b", "c"), ("a", "b"), ("zz", "z")]
    tokenizer = tokenizer_from_codes(path)
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("abca")["input_ids"])
    assert with_joiners(pieces[:-1]) == ["a@@", "bc@@", "a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a b\nc d\n", "holds codes of version 0.1, which has no number in its file; learn them again"),
        (b"#version: 0.3\na b\n", "holds codes of version 0.3; learn them again to have version 0.2"),
        (b"#version: 0.2\na b\na b c\n", ":3: a line of byte-pair codes is two pieces with a blank between them"),
        (b"#version: 0.2\n\xff b\n", "is not UTF-8; give a file of byte-pair codes"),
        (b"", "holds codes of version 0.1"),
    ],
)
def test_files_that_hold_no_codes(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "codes").write_bytes(content)
    with pytest.raises(DataError, match=message.replace(".", r"\.")):
        tokenizer_from_codes(tmp_path / "codes")
    with pytest.raises(DataError, match="does not exist"):
        tokenizer_from_codes(tmp_path / "none")
