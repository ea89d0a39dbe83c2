"""SQuAD JSON: questions with and without answers, and every kind of wrong content by file, line and way inside."""

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from depthwise.data.lines import LineReport, LineRules
from depthwise.data.squad import Answer, SquadJson
from depthwise.errors import DataError

CONTEXT = "Norman were the people who gave their name to Normandy."
CONTENT: dict[str, Any] = {
    "version": "v2.0",
    "data": [
        {
            "title": "Normans",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "q1",
                            "question": "What is named?",
                            "answers": [
                                {"text": "Normandy", "answer_start": 46},
                                {"text": "Norman", "answer_start": 46},
                            ],
                            "is_impossible": False,
                        },
                        {
                            "id": "q2",
                            "question": "Who gave nothing?",
                            "answers": [],
                            "plausible_answers": [{"text": "Norman", "answer_start": 0}],
                            "is_impossible": True,
                        },
                    ],
                },
                {
                    "context": "Rollo",
                    "qas": [{"id": "q3", "question": "Who?", "answers": [{"text": "Rollo", "answer_start": 0}]}],
                },
            ],
        }
    ],
}
Write = Callable[[Any], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(content: Any) -> Path:
        path = tmp_path / "dev.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1), encoding="utf-8")
        return path

    return written


def read(path: Path, **options: bool) -> list[Any]:
    return list(SquadJson(path, **options).questions(LineReport()))


def test_questions(write: Write) -> None:
    path = write(CONTENT)
    first, second, third = read(path)
    assert (first.id, first.question, first.context) == ("q1", "What is named?", CONTEXT)
    assert first.answers == (Answer("Normandy", 46), Answer("Norman", 46))
    assert second.answers == ()
    assert third.answers == (Answer("Rollo", 0),)
    lines = path.read_text().split("\n")
    for question in (first, second, third):
        assert lines[question.line - 1].strip() == "{"
        assert f'"id": "{question.id}"' in lines[question.line]


def test_as_a_corpus(write: Write) -> None:
    corpus = SquadJson(write(CONTENT))
    examples = list(corpus.examples(LineReport()))
    assert examples[0].texts == ("What is named?", CONTEXT)
    answers = [[answer.text for answer in question.answers] for question in read(corpus.path)]
    assert [json.loads(example.label or "") for example in examples] == answers
    unlabelled = SquadJson(corpus.path, labelled=False).examples(LineReport())
    assert [example.label for example in unlabelled] == [None] * 3
    assert (corpus.num_texts, corpus.num_lines(), corpus.name) == (2, 3, str(corpus.path))
    assert corpus.identity() != SquadJson(corpus.path, labelled=False).identity()


def test_without_answers(write: Write) -> None:
    content = copy.deepcopy(CONTENT)
    for question in content["data"][0]["paragraphs"][0]["qas"]:
        question["answers"] = []
        question.pop("is_impossible")
    path = write(content)
    assert [question.answers for question in read(path, labelled=False)] == [(), (), ()]
    with pytest.raises(DataError, match=r'qas\[0\] \(question "q1"\): there is no answer and is_impossible is not'):
        read(path)


def test_packed(tmp_path: Path) -> None:
    path = tmp_path / "dev.json.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(CONTENT).encode()))
    assert [question.line for question in read(path)] == [1, 1, 1]


def changed(way: list[Any], value: Any) -> dict[str, Any]:
    """The content with one value replaced, or removed where the new one is ``...``."""
    content = copy.deepcopy(CONTENT)
    owner: Any = content
    for part in way[:-1]:
        owner = owner[part]
    if value is ...:
        del owner[way[-1]]
    else:
        owner[way[-1]] = value
    return content


PARAGRAPH = ["data", 0, "paragraphs", 0]
QUESTION = [*PARAGRAPH, "qas", 0]
ANSWER = [*QUESTION, "answers", 1]
IN_QUESTION = 'data[0].paragraphs[0].qas[0] (question "q1"): '
BAD = [
    (["data", 0], 3, "data: ", 'there is no list "paragraphs"', 0),
    (["data", 0, "paragraphs"], ..., "data[0]: ", 'there is no list "paragraphs"', 0),
    ([*PARAGRAPH, "context"], ..., "data[0].paragraphs[0]: ", 'field "context" holds no text', 1),
    ([*PARAGRAPH, "context"], "x" * 200, "data[0].paragraphs[0]: ", 'field "context" has more than max_chars=150', 1),
    ([*PARAGRAPH, "context"], "\ud800", "data[0].paragraphs[0]: ", 'field "context" holds half a character', 1),
    ([*PARAGRAPH, "qas"], "no", "data[0].paragraphs[0]: ", 'there is no list "qas"', 1),
    (QUESTION, [], "data[0].paragraphs[0].qas[0]: ", "this is no object", 2),
    ([*QUESTION, "id"], ..., "data[0].paragraphs[0].qas[0]: ", 'field "id" holds no text', 2),
    ([*QUESTION, "id"], 5, "data[0].paragraphs[0].qas[0]: ", 'field "id" holds no text', 2),
    ([*QUESTION, "question"], " ", IN_QUESTION, 'field "question" holds no text', 2),
    ([*QUESTION, "answers"], None, IN_QUESTION, 'field "answers" holds no list', 2),
    ([*QUESTION, "is_impossible"], "yes", IN_QUESTION, 'field "is_impossible" holds no truth value', 2),
    ([*QUESTION, "is_impossible"], True, IN_QUESTION, "is_impossible is true but there are answers", 2),
    (ANSWER, "Norman", IN_QUESTION, "answers[1]: this is no object", 2),
    ([*ANSWER, "text"], "", IN_QUESTION, 'answers[1]: field "text" holds no text', 2),
    ([*ANSWER, "answer_start"], "46", IN_QUESTION, 'answers[1]: field "answer_start" holds no whole number', 2),
    (
        [*ANSWER, "answer_start"],
        45,
        IN_QUESTION,
        'answers[1]: "Norman" does not stand at answer_start=45; it first stands at 0',
        2,
    ),
    (
        [*ANSWER, "text"],
        "Paris",
        IN_QUESTION,
        'answers[1]: "Paris" does not stand at answer_start=46; the context does not have it at all',
        2,
    ),
    ([*ANSWER, "answer_start"], -9, IN_QUESTION, 'answers[1]: "Norman" does not stand at answer_start=-9', 2),
    (
        ["data", 0, "paragraphs", 1, "qas", 0, "id"],
        "q1",
        'data[0].paragraphs[1].qas[0] (question "q1"): ',
        "an earlier question has the same id",
        2,
    ),
]


@pytest.mark.parametrize(("way", "value", "where", "message", "num_left"), BAD, ids=lambda value: str(value)[:40])
def test_wrong_content_is_named(
    write: Write, way: list[Any], value: Any, where: str, message: str, num_left: int
) -> None:
    path = write(changed(way, value))
    where = "data[0]: " if where == "data: " else where
    with pytest.raises(DataError) as caught:
        list(SquadJson(path).questions(LineReport(LineRules(max_chars=150))))
    text = str(caught.value)
    place, _, rest = text.removeprefix(f"{path}:").partition(": ")
    assert rest.startswith(where + message)
    assert "{" in path.read_text().split("\n")[int(place) - 1]
    report = LineReport(LineRules("skip", max_chars=150))
    assert len(list(SquadJson(path).questions(report))) == num_left
    assert report.num_bad == 1


def test_what_is_no_squad(write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dev\.json:2: the file is not JSON \(.* at column \d+\); give a file in"):
        read(write('{"data":\n [}'))
    for content in ([], {"data": {}}, {}):
        with pytest.raises(DataError, match=r'dev\.json:1: there is no list "data"; give a file in the form of SQuAD'):
            read(write(content))
    with pytest.raises(DataError, match=r"dev\.json: the file is nested too deeply"):
        read(write("[" * 200_000))
    (tmp_path / "dev.json").write_bytes(b'{"data":\n "\xff"}')
    with pytest.raises(DataError, match=r"dev\.json:2: byte 12 of the file is not UTF-8; save it as UTF-8"):
        read(tmp_path / "dev.json")
    with pytest.raises(DataError, match="does not exist"):
        read(tmp_path / "absent.json")
