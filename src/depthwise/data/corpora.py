"""Where examples come from: parallel text, tab-separated values and JSON lines, each read as a stream.

A corpus is a small frozen value that knows how to read itself, so that it can be read once to train a tokenizer and
once more to be tokenised. ``hub.HubDataset`` is one more, for data sets of the ``datasets`` library.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from depthwise.data.lines import Example, Fault, LineReport, LineRules, count_lines, opened, read_lines
from depthwise.errors import DataError

Fields = tuple[tuple[str, ...], str | None]
"""The texts of an example and its label."""


class Corpus(Protocol):
    """What tokenizers are trained on and stores are built from."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def num_texts(self) -> int:
        """How many texts each example has."""

    def num_lines(self) -> int:
        """How many examples there are at most, for a progress bar."""

    def identity(self) -> dict[str, Any]:
        """What decides the examples, as plain data: the content of files, wherever they lie, and how it is read."""

    def examples(self, report: LineReport) -> Iterator[Example]:
        """The good examples in order; bad ones go to the report, whose rules say what happens to them."""


@dataclass(frozen=True)
class ParallelText:
    """A text and its translation as two files of plain text, line by line."""

    source: Path
    target: Path

    @property
    def name(self) -> str:
        return f"{self.source} and {self.target}"

    @property
    def num_texts(self) -> int:
        return 2

    def num_lines(self) -> int:
        return min(count_lines(self.source), count_lines(self.target))

    def identity(self) -> dict[str, Any]:
        return {"kind": "parallel text", "files": [file_identity(self.source), file_identity(self.target)]}

    def examples(self, report: LineReport) -> Iterator[Example]:
        """Both sides are counted first: where they differ in length, that is known before any work is done."""
        paths, max_chars = (self.source, self.target), report.rules.max_chars
        counts = [count_lines(path) for path in paths]
        if counts[0] != counts[1]:
            message = (
                f"{paths[0]} has {counts[0]:,} lines but {paths[1]} has {counts[1]:,}, so that they cannot be paired"
            )
            report.bad(paths[counts[0] > counts[1]], min(counts) + 1, Fault("unequal_sides", message))
        sides = zip(*(read_lines(path, max_chars) for path in paths), strict=False)
        for number, texts in enumerate(islice(sides, min(counts)), start=1):
            for path, text in zip(paths, texts, strict=True):
                if isinstance(text, Fault):
                    report.bad(path, number, text)
                    break
            else:
                yield Example(texts, None, str(self.source), number)


@dataclass(frozen=True)
class LineFile(ABC):
    """A file with one example on each line."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def num_lines(self) -> int:
        return count_lines(self.path)

    def examples(self, report: LineReport) -> Iterator[Example]:
        for number, line in enumerate(read_lines(self.path, report.rules.max_chars), start=1):
            fields = line if isinstance(line, Fault) else self.fields(line)
            if isinstance(fields, Fault):
                report.bad(self.path, number, fields)
            else:
                yield Example(*fields, str(self.path), number)

    @abstractmethod
    def fields(self, line: str) -> Fields | Fault:
        """What a line says, or what is wrong with it."""


@dataclass(frozen=True)
class TabbedPairs(LineFile):
    """A text and its translation as tab-separated values, a pair on each line."""

    @property
    def num_texts(self) -> int:
        return 2

    def identity(self) -> dict[str, Any]:
        return {"kind": "tabbed pairs", "files": [file_identity(self.path)]}

    def fields(self, line: str) -> Fields | Fault:
        columns = _columns(line, ("source", "target"))
        return columns if isinstance(columns, Fault) else (tuple(columns), None)


@dataclass(frozen=True)
class LabelledText(LineFile):
    """Tab-separated values: a label, a text and, where ``num_texts`` is 2, a second text."""

    num_texts: int = 1

    def identity(self) -> dict[str, Any]:
        return {"kind": "labelled text", "num_texts": self.num_texts, "files": [file_identity(self.path)]}

    def fields(self, line: str) -> Fields | Fault:
        columns = _columns(line, ("label", *["text"] * self.num_texts))
        return columns if isinstance(columns, Fault) else (tuple(columns[1:]), columns[0].strip())


@dataclass(frozen=True)
class JsonLines(LineFile):
    """One JSON object per line, with its texts and its label under the given names.

    ``translation.de`` is the field ``de`` of the object under ``translation``.
    """

    texts: tuple[str, ...]
    label: str | None = None

    @property
    def num_texts(self) -> int:
        return len(self.texts)

    def identity(self) -> dict[str, Any]:
        files = [file_identity(self.path)]
        return {"kind": "json lines", "texts": list(self.texts), "label": self.label, "files": files}

    def fields(self, line: str) -> Fields | Fault:
        record = json_record(line)
        fields = record if isinstance(record, Fault) else fields_of(record, self.texts, self.label)
        return replace(fields, text=line) if isinstance(fields, Fault) else fields


def json_record(line: str) -> Any | Fault:
    """What a line of JSON holds."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return Fault("bad_json", "the line is not JSON")


def _columns(line: str, names: tuple[str, ...]) -> list[str] | Fault:
    """The columns of a line, if there is one for each name and none is empty."""
    columns = line.split("\t")
    if len(columns) != len(names):
        kind = "missing_tab" if len(columns) < len(names) else "extra_tab"
        return Fault(kind, f"{'<tab>'.join(names)} has {len(names)} columns but the line has {len(columns)}", line)
    if not all(column.strip() for column in columns):
        empty = "the label or a text" if names[0] == "label" else "the source or the target"
        return Fault("empty", f"{empty} is empty", line)
    return columns


def fields_of(record: Any, texts: tuple[str, ...], label: str | None) -> Fields | Fault:
    """Texts and label of one record. A label may also be a number or a truth value and is then spelled as in JSON."""
    found: dict[str, Any] = {}
    for name in (*texts, *([label] if label is not None else [])):
        value = record
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                return Fault("missing_field", f'there is no field "{name}"')
            value = value[part]
        if not isinstance(value, str) and (name != label or not isinstance(value, int | float)):
            return Fault("bad_field", f'field "{name}" holds no {"label" if name == label else "text"}')
        found[name] = value if isinstance(value, str) else json.dumps(value)
        if not found[name].strip():
            return Fault("empty", f'field "{name}" is empty')
        if not encodable(found[name]):
            return Fault("bad_utf8", f'field "{name}" holds half a character, which no UTF-8 can express')
    return tuple(found[name] for name in texts), None if label is None else found[label].strip()


def encodable(text: str) -> bool:
    """Whether a text has a form in UTF-8; one with half of a surrogate pair, as JSON can spell it, has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def num_texts_in(path: Path) -> int:
    """How many texts a line of tab-separated values has, judged by the first line of the file that has a tab."""
    for line in islice(read_lines(path, LineRules().max_chars), 100):
        if isinstance(line, str) and "\t" in line:
            return min(line.count("\t"), 2)
    raise DataError(f"{path} has no tab in its first lines; write one label<tab>text per line")


def file_identity(path: Path) -> list[Any]:
    """Size and digest of a file, which stay the same where it is moved."""
    with opened(path):  # says what is wrong with a file that cannot be read
        pass
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return [file.tell(), digest]
