"""From the names in a recipe to corpora."""

import gzip
import json
from pathlib import Path

import pytest

from depthwise.config import DataConfig
from depthwise.data import HubDataset, LineReport
from depthwise.errors import DataError
from depthwise.tasks.sources import labelled, num_texts, pairs, questions, running_text, tagged


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.de").write_text("eins\nzwei\n")
    (tmp_path / "t.en").write_text("one\ntwo\n")
    (tmp_path / "t.tsv").write_text("eins\tone\nzwei\ttwo\n")
    lines = [{"translation": {"de": "eins", "en": "one"}}, {"translation": {"de": "zwei", "en": "two"}}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with gzip.open(tmp_path / "packed.tsv.gz", "wt") as file:
        file.write("eins\tone\nzwei\ttwo\n")
    for language, words in (("de", "eins\nzwei\n"), ("en", "one\ntwo\n")):
        with gzip.open(tmp_path / f"z.{language}.gz", "wt") as file:
            file.write(words)
    (tmp_path / "c.tsv").write_text("x\ta text\ny\tanother\n")
    (tmp_path / "p.tsv").write_text("x\ta text\tanother\n")
    (tmp_path / "c.jsonl").write_text('{"text": "a text", "label": 3}\n')
    return tmp_path


LANGUAGES = DataConfig(source="de", target="en")
FIELDS = DataConfig(source="translation.de", target="translation.en")


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (LANGUAGES, ["t"]),
        (LANGUAGES, ["z"]),
        (DataConfig(), ["t.de", "t.en"]),
        (DataConfig(), ["t.tsv"]),
        (DataConfig(), ["packed.tsv.gz"]),
        (FIELDS, ["t.jsonl"]),
    ],
)
def test_every_form_of_parallel_text(folder: Path, data: DataConfig, names: list[str]) -> None:
    corpus = pairs(data, tuple(str(folder / name) for name in names))
    texts = [example.texts for example in corpus.examples(LineReport())]
    assert texts == [("eins", "one"), ("zwei", "two")]
    assert corpus.num_texts == 2


def test_two_files_with_a_comma(folder: Path) -> None:
    corpus = pairs(DataConfig(), (f"{folder}/t.de,{folder}/t.en",))
    assert next(example.texts for example in corpus.examples(LineReport())) == ("eins", "one")
    with pytest.raises(DataError, match="are 3 files; a split is one file or one for each side"):
        pairs(DataConfig(), (f"{folder}/t.tsv,{folder}/t.tsv,{folder}/t.tsv",))


def test_a_comma_in_the_name_of_a_folder(folder: Path) -> None:
    place = folder / "a,b"
    place.mkdir()
    for ending in ("de", "en"):
        (place / f"t,u.{ending}").write_text(f"{ending}\n")
    corpus = pairs(DataConfig(source="de", target="en"), (f"{place}/t,u",))
    assert [example.texts for example in corpus.examples(LineReport())] == [("de", "en")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("t", "ends in de, en, jsonl, tsv; say which two"),
        ("t.de", "is one side of a translation"),
        ("nowhere", "does not exist"),
        ("t.jsonl", "say which fields hold the texts"),
    ],
)
def test_what_cannot_be_two_texts(folder: Path, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        pairs(DataConfig(), (str(folder / name),))


def test_one_side_with_both_languages(folder: Path) -> None:
    with pytest.raises(DataError, match=r"t\.de is one side of a translation; name both files"):
        pairs(LANGUAGES, (str(folder / "t.de"),))
    (folder / "t").write_text("a file that is called like the beginning of two others\n")
    assert pairs(LANGUAGES, (str(folder / "t"),)).num_lines() == 2


def test_a_missing_side(folder: Path) -> None:
    corpus = pairs(DataConfig(source="de", target="fr"), (str(folder / "t"),))
    with pytest.raises(DataError, match=r"t\.fr does not exist"):
        list(corpus.examples(LineReport()))


def test_labelled_text(folder: Path) -> None:
    (one, _) = labelled(DataConfig(), (str(folder / "c.tsv"),)).examples(LineReport())
    assert (one.label, one.texts) == ("x", ("a text",))
    (pair,) = labelled(DataConfig(), (str(folder / "p.tsv"),)).examples(LineReport())
    assert pair.texts == ("a text", "another")
    (record,) = labelled(DataConfig(), (str(folder / "c.jsonl"),)).examples(LineReport())
    assert (record.label, record.texts) == ("3", ("a text",))
    assert num_texts(DataConfig(), (str(folder / "p.tsv"),)) == 2
    assert num_texts(DataConfig(text=("a", "b")), ("x.jsonl",)) == 2
    with pytest.raises(DataError, match="one file for each split"):
        labelled(DataConfig(), ("a.tsv", "b.tsv"))


def test_data_sets_by_name() -> None:
    hub = DataConfig(hub="some/set", hub_config="large", source="translation.de", target="translation.en")
    corpus = pairs(hub, ("validation",))
    assert corpus == HubDataset("some/set", ("translation.de", "translation.en"), split="validation", config="large")
    texts = DataConfig(hub="some/set", text=("premise", "hypothesis"), label="answer")
    assert labelled(texts, ("train",)) == HubDataset("some/set", ("premise", "hypothesis"), "answer", split="train")
    with pytest.raises(DataError, match="say which fields"):
        pairs(DataConfig(hub="some/set"), ("train",))


def test_tagged_words_and_questions(folder: Path) -> None:
    for name, place in (("a.txt", "Bonn"), ("b.txt", "Rome")):
        (folder / name).write_text(f"{place} I-LOC\n")
    names = (str(folder / "a.txt"), str(folder / "b.txt"))
    for files in (names, (",".join(names),)):
        corpus = tagged(DataConfig(), files)
        assert [(example.texts[0], example.label) for example in corpus.examples(LineReport())] == [
            ("Bonn", "B-LOC"),
            ("Rome", "B-LOC"),
        ]
        assert [example.file for example in corpus.examples(LineReport())] == list(names)
        assert (corpus.num_lines(), corpus.num_texts, corpus.name) == (2, 1, ", ".join(names))
    assert tagged(DataConfig(), names).identity() != tagged(DataConfig(), names[::-1]).identity()
    entry = {"id": "1", "question": "Who?", "answers": [{"text": "I", "answer_start": 0}]}
    content = {"data": [{"paragraphs": [{"context": "I do", "qas": [entry]}]}]}
    (folder / "q.json").write_text(json.dumps(content))
    (example,) = questions(DataConfig(), (str(folder / "q.json"),)).examples(LineReport())
    assert (example.texts, example.label) == (("Who?", "I do"), '["I"]')
    with pytest.raises(DataError, match=r"questions are read from files, not by data\.hub"):
        questions(DataConfig(hub="some/set"), ("train",))


def test_running_text(folder: Path) -> None:
    (folder / "t.txt").write_text("one\n\ntwo\n")
    for data, texts in ((DataConfig(), ["one", "", "two"]), (DataConfig(empty_lines="skip"), ["one", "two"])):
        corpus = running_text(data, (str(folder / "t.txt"),))
        assert [example.texts[0] for example in corpus.examples(LineReport())] == texts
    assert list(running_text(DataConfig(), (str(folder / "t.txt"),), "skip").examples(LineReport()))[1].line == 3
    (record,) = running_text(DataConfig(), (str(folder / "c.jsonl"),)).examples(LineReport())
    assert (record.texts, record.label) == (("a text",), None)
    (folder / "l.tsv").write_text("x\tfirst text\ny\tsecond text\n")
    labelled_lines = running_text(DataConfig(), (str(folder / "l.tsv"),)).examples(LineReport())
    assert [example.texts for example in labelled_lines] == [("first text",), ("second text",)]
    hub = DataConfig(hub="some/set", text=("story", "title"))
    assert running_text(hub, ("train",)) == HubDataset("some/set", ("story",), split="train")
    with pytest.raises(DataError, match="running text is one file for each split"):
        running_text(DataConfig(), ("a.txt", "b.txt"))
