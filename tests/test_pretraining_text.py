"""The text to pretrain on: documents of sentences, from the formats that other tasks read."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from .scripts import loaded


@pytest.fixture(scope="module")
def script() -> ModuleType:
    module: ModuleType = loaded("benchmarks/pretraining_text.py")
    return module


def test_sentences_stand_alone(script: ModuleType) -> None:
    assert script.sentences('One. "Two," he said.  Three? 4 is a number.<br /><br />Mr. X') == [
        *("One.", '"Two," he said.', "Three?", "4 is a number.", "Mr.", "X"),
    ]


def test_articles_of_wikitext(script: ModuleType, tmp_path: Path) -> None:
    lines = [" ", " = One = ", " ", " A well @-@ known , old one . It costs 1 @,@ 000 ( so ) . An <unk> one . "]
    lines += [" = = Part = = ", " ", " More . ", " = Two = ", " Last . "]
    (tmp_path / "wiki.txt").write_text("\n".join(lines))
    assert list(script.articles(tmp_path / "wiki.txt")) == [
        ["A well-known, old one.", "It costs 1,000 (so).", "More."],
        ["Last."],
    ]


def test_articles_of_newswire(script: ModuleType, tmp_path: Path) -> None:
    text = "-DOCSTART- -X- O O\n\nOne X O O\nword X O O\n\nTwo X O O\n\n-DOCSTART- -X- O O\n\nThree X O O\n"
    (tmp_path / "news.txt").write_text(text)
    assert list(script.newswire(tmp_path / "news.txt")) == [["One word", "Two"], ["Three"]]


def test_everything_together(script: ModuleType, tmp_path: Path) -> None:
    names = (*script.REVIEWS, *script.PASSAGES, *script.SENTENCES, *script.QUESTIONS, "wikitext2/train.txt")
    for name in (*names, "conll2003/train.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("label\tA text. Another.\n")
    for name in script.QUESTIONS:
        (tmp_path / name).write_text(json.dumps({"data": [{"paragraphs": [{"context": "Some. Text."}]}]}))
    (tmp_path / "wikitext2/train.txt").write_text(" = X = \n Words . \n")
    (tmp_path / "conll2003/train.txt").write_text("-DOCSTART- O\n\nNews O\n")
    script.write(tmp_path / "out.txt", script.training_documents(tmp_path))
    documents = (tmp_path / "out.txt").read_text().strip().split("\n\n")
    assert documents[0] == "Words."
    assert documents[-1] == "News"
    assert documents.count("A text.\nAnother.") == len(script.REVIEWS) + len(script.PASSAGES)
    assert documents.count("A text. Another.") == len(script.SENTENCES)
    assert documents.count("Some.\nText.") == len(script.QUESTIONS)
    assert "label" not in (tmp_path / "out.txt").read_text()
