"""Tokenizer files: raw text becomes the ids that Moses, subword-nmt and the dictionary give, and text again."""

import io
import json
from collections import Counter
from pathlib import Path

import pytest
from sacremoses import MosesDetokenizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe
from transformers import AutoTokenizer

from depthwise.errors import CheckpointError
from depthwise.interop.fairseq_dictionary import SPECIALS, ids_by_type, read_dictionary
from depthwise.interop.fairseq_text import Words, find_codes, read_codes, write_moses_tokenizer, write_word_tokenizer
from depthwise.models.configuration import DepthwiseConfig

GERMAN = [
    "Das ist ein kleines Haus, nicht wahr?",
    'Er sagte: "Wir haben 3,5 Millionen Euro & keine Zeit."',
    "Die Straße führt z.B. nach Köln (über Bonn).",
    "Kleine Häuser haben kleine Türen; große Häuser haben große Türen.",
    "Der Zug fährt um 12:30 Uhr ab - oder auch nicht ...",
]
ENGLISH = [
    "This is a small house, isn't it?",
    'He said: "We have 3.5 million euros & no time."',
    "The road leads to Cologne, e.g. via Bonn (that's long).",
    "Small houses have small doors; big houses have big doors.",
    "The well-known train leaves at noon - or doesn't.",
]
UNSEEN = [
    "Das große Straßenhaus kostet 7,25 Euro.",
    "Häuser-Türen & Züge: <s>nicht</s> [wahr] @-@ a@@b?",
    "  Viele   Leerzeichen  ",
    "Qualität 東京 zählt!",
    "ab",
    "X",
]


class Reference:
    """Moses and subword-nmt themselves, and the dictionary by hand."""

    def __init__(self, language: str, codes: Path, dictionary: Path | None = None) -> None:
        self.moses, self.detokenizer = MosesTokenizer(language), MosesDetokenizer(language)
        with codes.open(encoding="utf-8") as file:
            self.bpe = BPE(file)
        self.types = [*SPECIALS]
        if dictionary is not None:
            self.types += [line.rsplit(" ", 1)[0] for line in dictionary.read_text(encoding="utf-8").splitlines()]

    def pieces(self, text: str) -> list[str]:
        tokens = self.moses.tokenize(text, aggressive_dash_splits=True, return_str=True, escape=True)
        return self.bpe.process_line(tokens).split()

    def ids(self, text: str) -> list[int]:
        return [self.types.index(piece) if piece in self.types else 3 for piece in self.pieces(text)] + [2]

    def text(self, ids: list[int]) -> str:
        joined = " ".join(self.types[index] for index in ids if index > 2)
        return self.detokenizer.detokenize((joined + " ").replace("@@ ", "").split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Codes learned from both languages, and a dictionary for each."""
    folder = tmp_path_factory.mktemp("fairseq")
    tokenized = [
        MosesTokenizer(language).tokenize(line, aggressive_dash_splits=True, return_str=True)
        for language, lines in (("de", GERMAN), ("en", ENGLISH))
        for line in lines
    ]
    with (folder / "bpecodes").open("w", encoding="utf-8") as codes:
        learn_bpe(io.StringIO("\n".join(tokenized)), codes, num_symbols=60)
    for language, lines in (("de", GERMAN), ("en", ENGLISH)):
        reference = Reference(language, folder / "bpecodes")
        counts = Counter(piece for line in lines for piece in reference.pieces(line))
        text = "".join(f"{piece} {count}\n" for piece, count in counts.most_common())
        (folder / f"dict.{language}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with the tokenizer of these codes."""
    run = tmp_path_factory.mktemp("run")
    DepthwiseConfig(vocab_size=300, encoder={}, decoder={}).save_pretrained(run)
    source, target = (Words(read_dictionary(folder / f"dict.{language}.txt"), 64) for language in ("de", "en"))
    write_moses_tokenizer(run, source, target, read_codes(folder / "bpecodes"), ("de", "en"))
    return run


# Raw text


@pytest.mark.parametrize("text", [*GERMAN, *UNSEEN])
def test_source_text_has_the_ids_of_moses_and_subword_nmt(text: str, folder: Path, run: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(run)
    assert type(tokenizer).__name__ == "FSMTTokenizer"
    assert tokenizer(text).input_ids == Reference("de", folder / "bpecodes", folder / "dict.de.txt").ids(text)


@pytest.mark.parametrize("text", ENGLISH)
def test_target_text_becomes_ids_and_text_again(text: str, folder: Path, run: Path) -> None:
    reference = Reference("en", folder / "bpecodes", folder / "dict.en.txt")
    ids = AutoTokenizer.from_pretrained(run / "target")(text).input_ids
    assert ids == reference.ids(text)
    assert 3 not in ids
    decoded = AutoTokenizer.from_pretrained(run).decode([2, *ids], skip_special_tokens=True)
    assert decoded == reference.text(ids)
    assert decoded == text


def test_pieces_are_cut_as_often_as_they_should(folder: Path) -> None:
    """The test above would mean little if words were whole or single letters."""
    pieces = [piece for line in GERMAN for piece in Reference("de", folder / "bpecodes").pieces(line)]
    assert any(piece.endswith("@@") and len(piece) > 4 for piece in pieces)
    assert any(not piece.endswith("@@") and len(piece) > 3 for piece in pieces)


def test_batches_are_padded(run: Path) -> None:
    batch = AutoTokenizer.from_pretrained(run)(["Das ist ein Haus.", "ab"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch.input_ids[1][-1] == 1
    assert batch.attention_mask[1][-1] == 0


def test_special_ids_and_limit(run: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(run)
    ids = (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert ids == (0, 1, 2, 3)
    assert tokenizer.model_max_length == 64


def test_lower_case(folder: Path, run: Path, tmp_path: Path) -> None:
    source, target = (
        Words(read_dictionary(folder / f"dict.{language}.txt"), 64, lowercase=True) for language in ("de", "en")
    )
    write_moses_tokenizer(tmp_path, source, target, read_codes(folder / "bpecodes"), ("de", "en"))
    lowered, plain = AutoTokenizer.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(run)
    assert lowered("KLEINE Häuser").input_ids == plain("kleine häuser").input_ids != plain("KLEINE Häuser").input_ids


def test_saving_again_changes_nothing(run: Path, tmp_path: Path) -> None:
    AutoTokenizer.from_pretrained(run).save_pretrained(tmp_path)
    text = UNSEEN[1]
    assert AutoTokenizer.from_pretrained(tmp_path)(text).input_ids == AutoTokenizer.from_pretrained(run)(text).input_ids


# Codes


def write_codes(folder: Path, text: str) -> Path:
    path = folder / "bpecodes"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_first_of_two_equal_merges_counts(tmp_path: Path) -> None:
    path = write_codes(tmp_path, "#version: 0.2\na b</w>\nc d\na b</w>\n")
    assert read_codes(path) == [("a", "b</w>"), ("c", "d")]


def test_merges_with_a_blank_inside_never_apply(tmp_path: Path) -> None:
    path = write_codes(tmp_path, "#version: 0.2\na\u00a0 b\nc d\r\n")
    assert read_codes(path) == [("c", "d")]


def test_codes_with_counts(tmp_path: Path) -> None:
    assert read_codes(write_codes(tmp_path, "a b</w> 17\nc d 9\n")) == [("a", "b</w>"), ("c", "d")]


@pytest.mark.parametrize(
    ("text", "found"),
    [("#version: 0.1\na b\n", "version 0.1"), ("a b\nb c\n", "an early version, without a number")],
)
def test_codes_of_another_version(text: str, found: str, tmp_path: Path) -> None:
    path = write_codes(tmp_path, text)
    with pytest.raises(CheckpointError) as caught:
        read_codes(path)
    assert str(caught.value) == (f"{path} holds codes of {found}; only version 0.2 can be used, learn or convert to it")


@pytest.mark.parametrize("text", ["", "#version: 0.2\na b c\n", "one two 3\nfour\n"])
def test_a_file_without_codes(text: str, tmp_path: Path) -> None:
    path = write_codes(tmp_path, text)
    with pytest.raises(CheckpointError) as caught:
        read_codes(path)
    assert str(caught.value) == f"{path} holds lines that are no pair of pieces; give a file of byte-pair codes"


def test_codes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "bpecodes").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "bpecodes", tmp_path / "absent"):
        with pytest.raises(CheckpointError) as caught:
            read_codes(path)
        assert str(caught.value) == f"{path} cannot be read as text; give a file of byte-pair codes"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["bpecodes", "dict.de.txt"], ["bpecodes"]),
        (["code", "other.codes"], ["code"]),
        (["de.codes", "en.codes", "model.pt"], ["de.codes", "en.codes"]),
        (["wmt.bpecodes"], ["wmt.bpecodes"]),
        (["dict.de.txt"], []),
    ],
)
def test_finding_codes(names: list[str], found: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in find_codes(tmp_path)] == found


# Prepared text


TYPES = (*SPECIALS, "das", "Haus@@", "tür", ".")


def test_words_between_blanks(tmp_path: Path) -> None:
    write_word_tokenizer(tmp_path, Words(TYPES, 64))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    batch = tokenizer(["das Haus@@  tür .", "Das x<s>y </s>"], padding=True)
    assert batch.input_ids == [[4, 5, 6, 7, 2], [3, 3, 2, 2, 1]]
    assert set(batch) == {"input_ids", "attention_mask"}
    assert tokenizer.decode([2, 4, 5, 6, 7, 2], skip_special_tokens=True) == "das Haus@@ tür ."
    assert tokenizer.model_max_length == 64
    ids = (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert ids == (0, 1, 2, 3)


def test_the_tokenizer_says_that_it_expects_prepared_text(tmp_path: Path) -> None:
    write_word_tokenizer(tmp_path, Words(TYPES, None))
    assert AutoTokenizer.from_pretrained(tmp_path).init_kwargs["expects_pretokenized"] is True
    assert json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))["expects_pretokenized"] is True


def test_lower_case_of_words(tmp_path: Path) -> None:
    write_word_tokenizer(tmp_path, Words(TYPES, 64, lowercase=True))
    assert AutoTokenizer.from_pretrained(tmp_path)("DAS TÜR").input_ids == [4, 6, 2]


def test_prompts_begin_where_sequences_end(tmp_path: Path) -> None:
    write_word_tokenizer(tmp_path, Words(TYPES, 64), for_prompts=True)
    batch = AutoTokenizer.from_pretrained(tmp_path)(["das tür", "das"], padding=True)
    assert batch.input_ids == [[2, 4, 6], [1, 2, 4]]


# Dictionaries


def write_dictionary(folder: Path, text: str) -> Path:
    path = folder / "dict.de.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_dictionary(tmp_path: Path) -> None:
    path = write_dictionary(tmp_path, "das 12\nein Wort 3\n\u2028 2\nmadeupword0000 0\n")
    assert read_dictionary(path) == (*SPECIALS, "das", "ein Wort", "\u2028", "madeupword0000")


def test_types_that_come_again_take_a_row_each(tmp_path: Path) -> None:
    text = "das 12\nist 5\ndas 3 #fairseq:overwrite\nist 1\n<unk> 2 #fairseq:overwrite\n"
    types = read_dictionary(write_dictionary(tmp_path, text))
    assert types == (*SPECIALS, "das", "ist", "das", "ist", "<unk>")
    ids = ids_by_type(types)
    assert [ids[name] for name in (*SPECIALS, "das", "ist")] == [0, 1, 2, 3, 6, 7]
    assert sorted(ids.values()) == list(range(9))


@pytest.mark.parametrize(
    ("text", "line", "shown"), [("das 12\nist\n", 2, "ist"), ("das zwölf\n", 1, "das zwölf"), ("das 1\n\n", 2, "")]
)
def test_a_line_that_is_no_entry(text: str, line: int, shown: str, tmp_path: Path) -> None:
    path = write_dictionary(tmp_path, text)
    with pytest.raises(CheckpointError) as caught:
        read_dictionary(path)
    found = f'expected a type and its count, got "{shown}"'
    assert str(caught.value) == f"{path}:{line}: {found}; give a dictionary that fairseq wrote"


def test_a_dictionary_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "dict.de.txt"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError) as caught:
        read_dictionary(path)
    assert str(caught.value) == f"{path} cannot be read as text in UTF-8; give a dictionary that fairseq wrote"
