"""Data sets of the ``datasets`` library, by name, as a corpus like any other. The library is an optional extra."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from depthwise.data.corpora import fields_of
from depthwise.data.lines import Example, Fault, LineReport
from depthwise.errors import DataError


@dataclass(frozen=True)
class HubDataset:
    """A split of a data set, with the columns that hold its texts and its label.

    ``translation.de`` is the field ``de`` of the column ``translation``. A column of class labels gives their names;
    examples without a class, which have the number -1, are bad lines. Line n of its split is example n, from 1.
    """

    path: str
    texts: tuple[str, ...]
    label: str | None = None
    split: str = "train"
    config: str | None = None
    revision: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """More arguments for ``datasets.load_dataset``, such as ``data_files``."""

    @property
    def name(self) -> str:
        return f"{self.path}{f'/{self.config}' if self.config else ''}[{self.split}]"

    @property
    def num_texts(self) -> int:
        return len(self.texts)

    def num_lines(self) -> int:
        return len(self._rows)

    def identity(self) -> dict[str, Any]:
        """The library gives each data set a fingerprint of its content and of what was done to it."""
        return {
            "kind": "datasets",
            "fingerprint": self._rows._fingerprint,
            "texts": list(self.texts),
            "label": self.label,
        }

    def examples(self, report: LineReport) -> Iterator[Example]:
        names = self._class_names()
        for number, row in enumerate(self._rows, start=1):
            named = _with_class_name(row, self.label, names)
            fields = named if isinstance(named, Fault) else fields_of(named, self.texts, self.label)
            if not isinstance(fields, Fault) and any(len(text) > report.rules.max_chars for text in fields[0]):
                fields = Fault("over_long", f"a text has more than max_chars={report.rules.max_chars:,} characters")
            if isinstance(fields, Fault):
                report.bad(self.name, number, fields)
            else:
                yield Example(*fields, self.name, number)

    @cached_property
    def _rows(self) -> Any:
        """The split, read from disk as it is iterated. Columns are checked before any work is done."""
        try:
            import datasets
        except ModuleNotFoundError:
            raise DataError(
                f'the data set {self.path} needs the library datasets; install it with: pip install "depthwise[data]"'
            ) from None
        try:
            rows = datasets.load_dataset(
                self.path, self.config, split=self.split, revision=self.revision, **self.options
            )
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
            raise DataError(f"{self.name} cannot be loaded: {reason}; check name, configuration and split") from error
        for name in (*self.texts, *([self.label] if self.label is not None else [])):
            if name.split(".")[0] not in rows.column_names:
                known = ", ".join(rows.column_names)
                raise DataError(f'{self.name} has no column "{name.split(".")[0]}"; it has {known}')
        return rows

    def _class_names(self) -> list[str] | None:
        return None if self.label is None else getattr(self._rows.features.get(self.label), "names", None)


def _with_class_name(row: dict[str, Any], label: str | None, names: list[str] | None) -> dict[str, Any] | Fault:
    """A row with the name of its class instead of the number."""
    if label is None or names is None or not isinstance(row[label], int):
        return row
    if not 0 <= row[label] < len(names):
        return Fault("bad_label", f"{row[label]} is the number of no class")
    return {**row, label: names[row[label]]}
