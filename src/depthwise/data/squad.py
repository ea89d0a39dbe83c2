"""Questions about a context, in the JSON of SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018).

    {"data": [{"title": …, "paragraphs": [{"context": …, "qas": [
        {"id": …, "question": …, "answers": [{"text": …, "answer_start": …}], "is_impossible": …}]}]}]}

Fields that are not named here, such as plausible answers, are passed over. What is wrong is told with file, line and
the way inside the JSON; it spoils the question, the paragraph or the article that it concerns.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depthwise.data.corpora import encodable, file_identity
from depthwise.data.json_places import Place, object_lines, spelled
from depthwise.data.lines import Example, Fault, LineReport, opened
from depthwise.errors import DataError


@dataclass(frozen=True, slots=True)
class Answer:
    """A text that stands at ``context[start : start + len(text)]``."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its context, and what is right: any of the answers, or, where there are none, that there is none."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    file: str
    line: int


@dataclass(frozen=True)
class SquadJson:
    """A file of questions as a corpus.

    As examples, the texts are question and context, and the label is a JSON list of the answers that are right.
    """

    path: Path
    labelled: bool = True
    """Whether answers are wanted. Without, whatever the file says about them is passed over."""

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def num_texts(self) -> int:
        return 2

    def num_lines(self) -> int:
        """How many questions there are, good or bad."""
        paragraphs = (
            paragraph for article in _items(self._loaded()[0], "data") for paragraph in _items(article, "paragraphs")
        )
        return sum(len(_items(paragraph, "qas")) for paragraph in paragraphs)

    def identity(self) -> dict[str, Any]:
        return {"kind": "squad", "labelled": self.labelled, "files": [file_identity(self.path)]}

    def examples(self, report: LineReport) -> Iterator[Example]:
        for found in self.questions(report):
            label = json.dumps([answer.text for answer in found.answers], ensure_ascii=False)
            texts = (found.question, found.context)
            yield Example(texts, label if self.labelled else None, found.file, found.line)

    def questions(self, report: LineReport) -> Iterator[Question]:
        """The good questions in order."""
        content, text = self._loaded()
        reader = _Reader(self.path, self.labelled, report, object_lines(text))
        yield from reader.questions(content)

    def _loaded(self) -> tuple[Any, str]:
        with opened(self.path) as file:
            raw = file.read()
        try:
            text = raw.decode("utf-8-sig")
            return json.loads(text), text
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise DataError(
                f"{self.path}:{line}: byte {error.start + 1} of the file is not UTF-8; save it as UTF-8"
            ) from None
        except json.JSONDecodeError as error:
            raise DataError(
                f"{self.path}:{error.lineno}: the file is not JSON ({error.msg} at column {error.colno}); "
                "give a file in the form of SQuAD"
            ) from None
        except RecursionError:
            raise DataError(f"{self.path}: the file is nested too deeply; give a file in the form of SQuAD") from None


@dataclass(frozen=True)
class _Reader:
    """Walks through a file and keeps account of where it is."""

    path: Path
    labelled: bool
    report: LineReport
    lines: dict[Place, int]

    def questions(self, content: Any) -> Iterator[Question]:
        if not isinstance(content, dict) or not isinstance(content.get("data"), list):
            raise DataError(f'{self.path}:1: there is no list "data"; give a file in the form of SQuAD')
        seen: set[str] = set()
        for number, article in enumerate(content["data"]):
            place: Place = ("data", number)
            for inner, paragraph in self._inside(article, place, "paragraphs"):
                context = paragraph.get("context") if isinstance(paragraph, dict) else None
                if (message := _text_fault(context, "context", self.report.rules.max_chars)) is not None:
                    self._bad(inner, "bad_paragraph", message)
                    continue
                for innermost, entry in self._inside(paragraph, inner, "qas"):
                    found = self._question(entry, str(context), innermost, seen)
                    if isinstance(found, Fault):
                        self._bad(innermost, found.kind, found.message, entry)
                    else:
                        seen.add(found.id)
                        yield found

    def _inside(self, owner: Any, place: Place, name: str) -> Iterator[tuple[Place, Any]]:
        """The items of a list that an object has to have, with their places."""
        if not isinstance(owner, dict) or not isinstance(owner.get(name), list):
            self._bad(place, "missing_field", f'there is no list "{name}"')
            return
        for number, item in enumerate(owner[name]):
            yield (*place, name, number), item

    def _question(self, entry: Any, context: str, place: Place, seen: set[str]) -> Question | Fault:
        if not isinstance(entry, dict):
            return Fault("bad_question", "this is no object")
        key, question = entry.get("id"), entry.get("question")
        if not isinstance(key, str) or not key:
            return Fault("bad_question", 'field "id" holds no text')
        if key in seen:
            return Fault("repeated_id", "an earlier question has the same id")
        if (message := _text_fault(question, "question", self.report.rules.max_chars)) is not None:
            return Fault("bad_question", message)
        answers = self._answers(entry, context) if self.labelled else ()
        if isinstance(answers, Fault):
            return answers
        return Question(key, str(question), context, answers, str(self.path), self._line(place))

    def _answers(self, entry: dict[str, Any], context: str) -> tuple[Answer, ...] | Fault:
        given, impossible = entry.get("answers", []), entry.get("is_impossible", False)
        if not isinstance(given, list) or not isinstance(impossible, bool):
            name, what = ("is_impossible", "truth value") if isinstance(given, list) else ("answers", "list")
            return Fault("bad_answer", f'field "{name}" holds no {what}')
        if impossible and given:
            return Fault("bad_answer", "is_impossible is true but there are answers")
        if not impossible and not given:
            return Fault("no_answer", "there is no answer and is_impossible is not true")
        answers = []
        for number, answer in enumerate(given):
            checked = _answer(answer, context)
            if isinstance(checked, Fault):
                return Fault(checked.kind, f"answers[{number}]: {checked.message}")
            answers.append(checked)
        return tuple(answers)

    def _line(self, place: Place) -> int:
        """The line of an object, or of the nearest one around what is no object."""
        while place not in self.lines:
            place = place[:-1]
        return self.lines[place]

    def _bad(self, place: Place, kind: str, message: str, entry: Any = None) -> None:
        key = entry.get("id") if isinstance(entry, dict) else None
        where = spelled(place) + (f' (question "{key}")' if isinstance(key, str) and key else "")
        self.report.bad(self.path, self._line(place), Fault(kind, f"{where}: {message}"))


def _answer(answer: Any, context: str) -> Answer | Fault:
    if not isinstance(answer, dict):
        return Fault("bad_answer", "this is no object")
    text, start = answer.get("text"), answer.get("answer_start")
    if not isinstance(text, str) or not text.strip():
        return Fault("bad_answer", 'field "text" holds no text')
    if not isinstance(start, int) or isinstance(start, bool):
        return Fault("bad_answer", 'field "answer_start" holds no whole number')
    if start < 0 or context[start : start + len(text)] != text:
        found = context.find(text)
        instead = f"it first stands at {found}" if found >= 0 else "the context does not have it at all"
        shown = text if len(text) <= 40 else f"{text[:40]}…"
        return Fault("misplaced_answer", f'"{shown}" does not stand at answer_start={start}; {instead}')
    return Answer(text, start)


def _text_fault(value: Any, name: str, max_chars: int) -> str | None:
    if not isinstance(value, str) or not value.strip():
        return f'field "{name}" holds no text'
    if len(value) > max_chars:
        return f'field "{name}" has more than max_chars={max_chars:,} characters'
    if not encodable(value):
        return f'field "{name}" holds half a character, which no UTF-8 can express'
    return None


def _items(owner: Any, name: str) -> list[Any]:
    items = owner.get(name) if isinstance(owner, dict) else None
    return items if isinstance(items, list) else []
