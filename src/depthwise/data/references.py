"""JSON lines whose second text may be written in several ways: summaries by several people, translations likewise."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depthwise.data.corpora import fields_of, file_identity
from depthwise.data.lines import Example, Fault, LineReport, count_lines, read_lines


@dataclass(frozen=True)
class JsonReferences:
    """One JSON object per line: a text and, under another name, one reference or a list of them.

    The texts of an example are the text and all its references; of these a store takes the first.
    """

    path: Path
    text: str
    references: str

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def num_texts(self) -> int:
        return 2

    def num_lines(self) -> int:
        return count_lines(self.path)

    def identity(self) -> dict[str, Any]:
        names = [self.text, self.references]
        return {"kind": "json references", "texts": names, "files": [file_identity(self.path)]}

    def examples(self, report: LineReport) -> Iterator[Example]:
        for number, line in enumerate(read_lines(self.path, report.rules.max_chars), start=1):
            found = line if isinstance(line, Fault) else self._fields(line)
            if isinstance(found, Fault):
                report.bad(self.path, number, found)
            else:
                yield Example(found, None, str(self.path), number)

    def _fields(self, line: str) -> tuple[str, ...] | Fault:
        """The text and its references."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return Fault("bad_json", "the line is not JSON", line)
        texts: list[str] = []
        for owner, name in [(record, self.text), *_each(record, self.references)]:
            found = fields_of(owner, (name,), None)
            if isinstance(found, Fault):
                return Fault(found.kind, found.message, line)
            texts += found[0]
        if len(texts) == 1:
            return Fault("empty", f'field "{self.references}" is empty', line)
        return tuple(texts)


def _each(record: Any, name: str) -> Iterator[tuple[Any, str]]:
    """Each item of a list under a name such as ``a.b`` as a record of its own, with the name that messages give it."""
    value = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, list):
        yield record, name
        return
    for place, item in enumerate(value):
        numbered = f"{name}[{place}]"
        owner = item
        for part in reversed(numbered.split(".")):
            owner = {part: owner}
        yield owner, numbered
