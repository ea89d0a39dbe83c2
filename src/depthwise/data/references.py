"""JSON lines whose second text may be written in several ways: summaries by several people, translations likewise."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from depthwise.data.corpora import Fields, LineFile, fields_of, file_identity, json_record
from depthwise.data.lines import Fault


@dataclass(frozen=True)
class JsonReferences(LineFile):
    """One JSON object per line: a text and, under another name, one reference or a list of them.

    The texts of an example are the text and all its references; of these a store takes the first.
    """

    text: str
    references: str

    @property
    def num_texts(self) -> int:
        return 2

    def identity(self) -> dict[str, Any]:
        names = [self.text, self.references]
        return {"kind": "json references", "texts": names, "files": [file_identity(self.path)]}

    def fields(self, line: str) -> Fields | Fault:
        record = json_record(line)
        fields = record if isinstance(record, Fault) else self._texts(record)
        return replace(fields, text=line) if isinstance(fields, Fault) else (fields, None)

    def _texts(self, record: Any) -> tuple[str, ...] | Fault:
        """The text and its references."""
        texts: list[str] = []
        for owner, name in [(record, self.text), *_each(record, self.references)]:
            found = fields_of(owner, (name,), None)
            if isinstance(found, Fault):
                return found
            texts += found[0]
        return tuple(texts) if len(texts) > 1 else Fault("empty", f'field "{self.references}" is empty')


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
