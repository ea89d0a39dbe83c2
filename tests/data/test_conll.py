"""CoNLL columns: sentences, schemes, and every kind of wrong line by file and line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from depthwise.data.conll import ConllColumns, tag_names
from depthwise.data.lines import LineReport, LineRules
from depthwise.data.tokenizers import TokenizerOptions, train_tokenizers
from depthwise.errors import ConfigError, DataError

IOB1 = """\
-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
Bonn NNP I-NP I-LOC
Berlin NNP B-NP B-LOC

-DOCSTART- -X- O O
U.N. NNP I-NP I-ORG
official NN I-NP O
"""
Write = Callable[..., ConllColumns]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str, **options: object) -> ConllColumns:
        path = tmp_path / "a.conll"
        path.write_text(text, encoding="utf-8", newline="")
        return ConllColumns(path, **options)  # type: ignore[arg-type]

    return written


def test_sentences_in_iob2(write: Write) -> None:
    corpus = write(IOB1)
    first, second = corpus.sentences(LineReport())
    assert first.words == ("EU", "rejects", "Bonn", "Berlin")
    assert first.tags == ("B-ORG", "O", "B-LOC", "B-LOC")
    assert (first.line, second.line) == (3, 9)
    assert (second.words, second.tags) == (("U.N.", "official"), ("B-ORG", "O"))
    assert corpus.detected_scheme(LineRules()) == "iob1"
    assert tag_names([first, second]) == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG")


def test_examples_of_a_corpus(write: Write, tmp_path: Path) -> None:
    corpus = write(IOB1)
    (example, _) = corpus.examples(LineReport())
    assert example.texts == ("EU rejects Bonn Berlin",)
    assert example.label == "B-ORG O B-LOC B-LOC"
    assert (example.file, example.line) == (str(tmp_path / "a.conll"), 3)
    assert (corpus.num_texts, corpus.num_lines(), corpus.name) == (1, 2, str(tmp_path / "a.conll"))
    tokenizer = train_tokenizers(corpus, TokenizerOptions("word", 30, pretokenized=True), LineRules(), joint=True)
    assert "Berlin" in tokenizer.source.get_vocab()


def test_identity_is_content_and_columns(write: Write) -> None:
    one, other = write(IOB1).identity(), write(IOB1, tag_column=1, scheme="plain").identity()
    assert one != other
    assert write(IOB1).identity() == one
    assert write(IOB1 + "\n").identity() != one


def test_any_column_and_plain_tags(write: Write) -> None:
    (first, _) = write(IOB1, tag_column=1, scheme="plain").sentences(LineReport())
    assert first.tags == ("NNP", "VBZ", "NNP", "NNP")
    assert tag_names([first]) == ("NNP", "VBZ")
    (first, _) = write(IOB1, word_column=3, tag_column=2, scheme="iob1").sentences(LineReport())
    assert first.words == ("I-ORG", "O", "I-LOC", "B-LOC")
    assert first.tags == ("B-NP", "B-VP", "B-NP", "B-NP")


def test_white_space(write: Write) -> None:
    text = " a\u00a0b\t\tB-X \r\nc \tI-X\r\n \t\r\n\n\nd O"
    sentences = list(write(text).sentences(LineReport()))
    assert [sentence.words for sentence in sentences] == [("a\u00a0b", "c"), ("d",)]
    assert [sentence.tags for sentence in sentences] == [("B-X", "I-X"), ("O",)]
    assert [sentence.line for sentence in sentences] == [1, 6]


def test_bioes(write: Write) -> None:
    (sentence,) = write("a B-X\nb E-X\nc S-X\n").sentences(LineReport())
    assert sentence.tags == ("B-X", "I-X", "B-X")


GOOD = "a x B-PER\nb x I-PER\n\n"
BAD = {
    "c O\n": (4, "missing_column", "the line has 2 columns but the first one has 3"),
    "c x y O\n": (4, "extra_column", "the line has 4 columns but the first one has 3"),
    "c x O\nd x I-PER\n": (5, "bad_tag", 'tag "I-PER" follows no PER; an entity begins with "B-PER"'),
    "c x O\nd x PER\n": (
        5,
        "bad_tag",
        'tag "PER" is neither O nor begins with B- or I- (scheme plain takes any)',
    ),
    "c x O\n" + "d" * 60 + " x O\n": (5, "over_long", "the line has more than max_chars=50 characters"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_wrong_line_is_named(write: Write, bad: str) -> None:
    corpus, (line, kind, message) = write(GOOD + bad + "e x O\n\n" + GOOD), BAD[bad]
    with pytest.raises(DataError) as caught:
        list(corpus.sentences(LineReport(LineRules(max_chars=50))))
    assert str(caught.value).startswith(f"{corpus.path}:{line}: {message}; mend it")
    report = LineReport(LineRules("skip", max_chars=50))
    assert [sentence.line for sentence in corpus.sentences(report)] == [1, 4 + bad.count("\n") + 2]
    assert report.counts == {kind: 1}
    assert str(report.first[0]) == f"{corpus.path}:{line}: {message}"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes(b"a O\n\xff O\n")
    with pytest.raises(DataError, match=r"a\.conll:2: byte 1 of the line is not UTF-8"):
        list(ConllColumns(path).sentences(LineReport()))


def test_columns_that_are_not_there(write: Write) -> None:
    with pytest.raises(DataError, match=r":1: there is no tag_column 3, because the line has 2 columns"):
        list(write("a O\n", tag_column=3).sentences(LineReport()))
    with pytest.raises(DataError, match=r":1: there is no word_column -3, because the line has 2 columns"):
        list(write("a O\n", word_column=-3).sentences(LineReport()))
    with pytest.raises(DataError, match=r":1: word_column and tag_column are the same column of the line"):
        list(write("a\nb\n").sentences(LineReport()))


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError) as caught:
        ConllColumns(Path("a"), 1, 1, "iobes")
    assert [problem.option for problem in caught.value.problems] == ["scheme", "tag_column"]
