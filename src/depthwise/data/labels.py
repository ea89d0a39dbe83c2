"""Labels of examples as numbers: classes by their place among all names, or numbers as they are."""

import math
from pathlib import Path

import numpy as np

from depthwise.data.lines import Example, Fault
from depthwise.data.store import LABEL_TYPES
from depthwise.errors import DataError


class LabelColumn:
    """Turns labels into numbers while examples stream by.

    Where the names of classes are not given they are numbered as they come, and sorted when all have been seen.
    """

    def __init__(self, kind: str, names: tuple[str, ...] | None) -> None:
        self.kind = kind
        self.dtype = LABEL_TYPES[kind]
        self.given = names
        self.places = {name: place for place, name in enumerate(names or ())}

    @property
    def names(self) -> list[str] | None:
        """The classes in the order of their numbers."""
        return list(self.places) if self.kind == "class" else None

    def value(self, example: Example) -> int | float | Fault:
        """The number of a label. A class that was never seen is an error whatever the rule for bad lines."""
        if example.label is None:
            raise DataError(f"{example.file}:{example.line}: there is no label; name the field that holds it")
        if self.kind == "number":
            return _number(example.label)
        if self.given is not None and example.label not in self.places:
            known = ", ".join(self.given[:10]) + (", …" if len(self.given) > 10 else "")
            raise DataError(
                f'{example.file}:{example.line}: label "{example.label}" was never seen in training, '
                f"which knows {known}; mend it, or train on data that has it"
            )
        return self.places.setdefault(example.label, len(self.places))

    def finish(self, path: Path) -> None:
        """Sort the names that were collected and renumber the file of labels accordingly."""
        if self.kind != "class" or self.given is not None:
            return
        ordered = sorted(self.places, key=_by_number_then_name)
        self.places, earlier = {name: place for place, name in enumerate(ordered)}, list(self.places)
        renumbered = np.array([self.places[name] for name in earlier], self.dtype)
        labels = np.memmap(path, self.dtype, mode="r+")
        labels[:] = renumbered[labels]
        labels.flush()


def _number(label: str) -> float | Fault:
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    return number if math.isfinite(number) else Fault("bad_label", f'label "{label}" is not a number', label)


def _by_number_then_name(name: str) -> tuple[bool, int, str]:
    """10 comes after 9, and names after numbers."""
    return (False, int(name), name) if name.isdecimal() else (True, 0, name)
