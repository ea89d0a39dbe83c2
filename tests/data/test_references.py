"""JSON lines with several references: read, and every kind of wrong line by file and line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from depthwise.data import StoreOptions, TokenizerOptions, build_store, train_tokenizer
from depthwise.data.lines import LineReport, LineRules
from depthwise.data.references import JsonReferences
from depthwise.errors import DataError

Write = Callable[..., JsonReferences]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(*lines: str, references: str = "summaries") -> JsonReferences:
        (tmp_path / "a.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return JsonReferences(tmp_path / "a.jsonl", "dialogue", references)

    return written


GOOD = '{"dialogue": "a\\nb", "summaries": ["one", "two"]}'


def test_one_and_several(write: Write) -> None:
    corpus = write(GOOD, '{"dialogue": "c", "summaries": "three"}')
    found = list(corpus.examples(LineReport()))
    assert [example.texts for example in found] == [("a\nb", "one", "two"), ("c", "three")]
    assert [example.line for example in found] == [1, 2]
    assert (corpus.num_texts, corpus.num_lines(), corpus.name) == (2, 2, str(corpus.path))
    other = JsonReferences(corpus.path, "summaries", "dialogue")
    assert corpus.identity() != other.identity()


def test_inner_fields(write: Write) -> None:
    corpus = write('{"dialogue": "c", "by": {"people": ["x", "y"]}}', references="by.people")
    assert [example.texts for example in corpus.examples(LineReport())] == [("c", "x", "y")]


def test_a_store_takes_the_first_reference(write: Write, tmp_path: Path) -> None:
    corpus = write(GOOD)
    tokenizer = train_tokenizer(["a b one two"], TokenizerOptions(kind="word", vocab_size=20))
    store = build_store(corpus, [tokenizer] * 2, StoreOptions(), tmp_path / "cache")
    assert store.num_texts == 2
    assert store[0].texts[1].tolist() == tokenizer("one")["input_ids"]


BAD = {
    '{"dialogue": "a", "summaries": ["one"': ("bad_json", "the line is not JSON"),
    '["a"]': ("missing_field", 'there is no field "dialogue"'),
    '{"dialogue": "a"}': ("missing_field", 'there is no field "summaries"'),
    '{"summaries": ["a"]}': ("missing_field", 'there is no field "dialogue"'),
    '{"dialogue": "a", "summaries": []}': ("empty", 'field "summaries" is empty'),
    '{"dialogue": "a", "summaries": null}': ("bad_field", 'field "summaries" holds no text'),
    '{"dialogue": "a", "summaries": ["b", 3]}': ("bad_field", 'field "summaries[1]" holds no text'),
    '{"dialogue": "a", "summaries": ["b", " "]}': ("empty", 'field "summaries[1]" is empty'),
    '{"dialogue": ["a"], "summaries": "b"}': ("bad_field", 'field "dialogue" holds no text'),
    '{"dialogue": "a", "summaries": ["\\ud800"]}': ("bad_utf8", 'field "summaries[0]" holds half a character'),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_wrong_line_is_named(write: Write, bad: str) -> None:
    corpus, (kind, message) = write(GOOD, bad, GOOD), BAD[bad]
    with pytest.raises(DataError) as caught:
        list(corpus.examples(LineReport()))
    assert str(caught.value).startswith(f"{corpus.path}:2: {message}")
    report = LineReport(LineRules("skip"))
    assert [example.line for example in corpus.examples(report)] == [1, 3]
    assert report.counts == {kind: 1}
