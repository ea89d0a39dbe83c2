"""Examples of every form of files."""

import json
from pathlib import Path
from typing import Any

import pytest

from depthwise.data.corpora import Corpus, JsonLines, LabelledText, ParallelText, TabbedPairs, num_texts_in
from depthwise.data.lines import Example, LineReport, LineRules
from depthwise.errors import DataError


def read(corpus: Corpus, **rules: Any) -> tuple[list[Example], LineReport]:
    report = LineReport(LineRules(**{"on_bad_line": "skip", **rules}))
    return list(corpus.examples(report)), report


def parallel(folder: Path, source: bytes, target: bytes) -> ParallelText:
    (folder / "a.de").write_bytes(source)
    (folder / "a.en").write_bytes(target)
    return ParallelText(folder / "a.de", folder / "a.en")


def test_parallel_text_pairs_lines_by_number(tmp_path: Path) -> None:
    corpus = parallel(tmp_path, b"ein\n\nzwei\ndrei\nvier\r\n", b"one\ntwo\n\xff\nthr\ree\nfour\n")
    examples, report = read(corpus)
    assert [(example.texts, example.line) for example in examples] == [
        (("ein", "one"), 1),
        (("drei", "thr\ree"), 4),
        (("vier", "four"), 5),
    ]
    assert report.counts == {"empty": 1, "bad_utf8": 1}
    assert [(Path(bad.file).name, bad.line) for bad in report.first] == [("a.de", 2), ("a.en", 3)]


@pytest.mark.parametrize(("source", "target", "shorter"), [(3, 5, "a.de"), (5, 3, "a.en")])
def test_unequal_sides_are_reported_once_with_both_counts(
    tmp_path: Path, source: int, target: int, shorter: str
) -> None:
    corpus = parallel(tmp_path, b"x\n" * source, b"y\n" * target)
    examples, report = read(corpus)
    assert len(examples) == 3
    assert report.counts == {"unequal_sides": 1}
    (bad,) = report.first
    assert (Path(bad.file).name, bad.line) == (shorter, 4)
    assert f"a.de has {source} lines but " in bad.message
    assert f"a.en has {target}" in bad.message


def test_unequal_sides_fail_before_anything_is_read(tmp_path: Path) -> None:
    corpus = parallel(tmp_path, b"x\nx\n", b"y\n")
    with pytest.raises(
        DataError, match=r"a\.en:2: .*a\.de has 2 lines but .*a\.en has 1, so that they cannot be paired"
    ):
        next(corpus.examples(LineReport()))


def test_tabbed_pairs(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("one\teins\r\ntwo\nthree\tdrei\ttrois\nfour\t \n\n")
    examples, report = read(TabbedPairs(path))
    assert [(example.texts, example.label, example.line) for example in examples] == [(("one", "eins"), None, 1)]
    assert report.counts == {"missing_tab": 1, "extra_tab": 1, "empty": 2}
    assert [bad.message for bad in report.first[:3]] == [
        "source<tab>target has 2 columns but the line has 1",
        "source<tab>target has 2 columns but the line has 3",
        "the source or the target is empty",
    ]


def test_labelled_text(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("pos\tgood film\nneg bad film\nneg\ta\tb\n\tno label\npos\t \n neg \tdull\n")
    examples, report = read(LabelledText(path))
    assert [(example.label, example.texts, example.line) for example in examples] == [
        ("pos", ("good film",), 1),
        ("neg", ("dull",), 6),
    ]
    assert report.counts == {"missing_tab": 1, "extra_tab": 1, "empty": 2}
    assert report.first[0].message == "label<tab>text has 2 columns but the line has 1"
    assert num_texts_in(path) == 1


def test_labelled_pairs(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("\nyes\ta cat\tan animal\nno\tonly one\n")
    examples, report = read(LabelledText(path, num_texts=2))
    assert [example.texts for example in examples] == [("a cat", "an animal")]
    assert report.counts == {"empty": 1, "missing_tab": 1}
    assert num_texts_in(path) == 2
    path.write_text("no tab\n")
    with pytest.raises(DataError, match="has no tab in its first lines; write one label<tab>text per line"):
        num_texts_in(path)


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = [
        {"translation": {"de": "ein\nHund", "en": "a dog"}, "score": 0.5},
        {"translation": {"de": "x", "en": "y"}, "score": True},
    ]
    bad = [
        "{",
        "[1]",
        json.dumps({"translation": {"de": "x"}, "score": 1}),
        json.dumps({"translation": "x", "score": 1}),
        json.dumps({"translation": {"de": 3, "en": "y"}, "score": 1}),
        json.dumps({"translation": {"de": "x", "en": "y"}, "score": [1]}),
        json.dumps({"translation": {"de": "x", "en": " "}, "score": 1}),
        '{"translation": {"de": "\\ud800", "en": "y"}, "score": 1}',
    ]
    path.write_text("\n".join([json.dumps(good[0]), *bad, json.dumps(good[1])]))
    corpus = JsonLines(path, texts=("translation.de", "translation.en"), label="score")
    examples, report = read(corpus)
    assert [(example.texts, example.label, example.line) for example in examples] == [
        (("ein\nHund", "a dog"), "0.5", 1),
        (("x", "y"), "true", 10),
    ]
    assert report.counts == {"bad_json": 1, "missing_field": 3, "bad_field": 2, "empty": 1, "bad_utf8": 1}
    assert report.first[2].message == 'there is no field "translation.en"'
    assert [report.first[place].text for place in (0, 2)] == [bad[0], bad[2]]


def test_the_identity_is_that_of_the_content(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    here, moved, changed = (parallel(folder, b"x\n", b"y\n" if folder.name != "c" else b"z\n") for folder in folders)
    assert here.identity() == moved.identity() != changed.identity()
    swapped = ParallelText(here.target, here.source)
    assert swapped.identity() != here.identity()
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n")
    assert LabelledText(path).identity() != LabelledText(path, 2).identity()
    assert JsonLines(path, ("a",)).identity() != JsonLines(path, ("b",)).identity()
    assert [corpus.num_lines() for corpus in (here, LabelledText(path), JsonLines(path, ("a",)))] == [1, 1, 1]
    with pytest.raises(DataError, match="does not exist"):
        LabelledText(tmp_path / "none").identity()
