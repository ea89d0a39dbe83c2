"""Tables of options name all options of their dataclass, with the defaults that these have."""

import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any

import pytest

from .blocks import pages, read_page

MARK = re.compile(r"^<!-- options ([\w.]+)(: some)? -->\n((?:\|.*\n)+)", re.MULTILINE)
FOLLOWS_FROM_DATA = {"source_languages", "target_languages"}
"""Options that nobody writes."""


@dataclass(frozen=True)
class Table:
    """The options of a class as a page lists them, with their defaults where it has a column for them."""

    options: type[Any]
    is_whole: bool
    defaults: dict[str, str | None]


def tables_of(text: str) -> Iterator[Table]:
    for path, some, table in MARK.findall(text):
        module, _, name = path.rpartition(".")
        head, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        column = head.index("default") if "default" in head else None
        defaults: dict[str, str | None] = {}
        for cells in lines:
            names = re.findall(r"`(\w+)`", cells[0])
            shown = [] if column is None or not cells[column] else [word.strip() for word in cells[column].split(",")]
            defaults |= {name: shown[place] if len(shown) == len(names) else None for place, name in enumerate(names)}
        yield Table(getattr(importlib.import_module(module), name), not some, defaults)


def check_tables(text: str) -> list[str]:
    """What is wrong with the tables of a page; several of one class may share its options."""
    problems = []
    named: defaultdict[type[Any], set[str]] = defaultdict(set)
    for table in tables_of(text):
        known = {field.name: field for field in fields(table.options)}
        named[table.options] |= set(table.defaults) | (set() if table.is_whole else set(known))
        for name, shown in table.defaults.items():
            if name not in known:
                problems.append(f"{table.options.__name__} has no option {name}")
            elif shown is not None and shown.strip("`") != as_shown(known[name]):
                problems.append(f"{table.options.__name__}.{name}: {shown} is to be {as_shown(known[name])}")
    for options, names in named.items():
        missing = {field.name for field in fields(options)} - names - FOLLOWS_FROM_DATA
        problems.extend(f"{options.__name__}.{name} is missing" for name in sorted(missing))
    return problems


def as_shown(field: Any) -> str:
    """A default as pages write it."""
    value = field.default
    if value is MISSING:
        return ""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value[0] if isinstance(value, tuple) and len(value) == 1 else value)


@pytest.mark.parametrize("page", pages())
def test_tables_of_options(page: str) -> None:
    assert check_tables(read_page(page)) == []


def test_policies_and_sections_of_depth_have_tables() -> None:
    found = {table.options.__name__ for page in pages() for table in tables_of(read_page(page)) if table.is_whole}
    policies = {f"{kind}Config" for kind in ("FixedDepth", "Confidence", "Patience", "SequenceExit", "TokenExit")}
    policies |= {f"{kind}Config" for kind in ("PoissonBinomial", "LearnedConfidence", "StructureExit", "UniformExit")}
    sections = {"ExitsConfig", "ExitTrainingConfig", "WordDepthsConfig", "LatentConfig", "LatentTrainingConfig"}
    assert policies | sections | {"StructureConfig", "RelativeConfig"} <= found


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["| `depth` | | n |", "| `deep` | | |"], "FixedDepthConfig has no option deep"),
        (["| `depths` | | n |"], "FixedDepthConfig.depth is missing"),
        (["| `depth` | 3 | n |"], "FixedDepthConfig.depth: 3 is to be "),
    ],
)
def test_a_wrong_table(lines: list[str], problem: str) -> None:
    head = ["<!-- options depthwise.config.depth.FixedDepthConfig -->", "| x | default | |", "|---|---|---|"]
    assert problem in check_tables("\n".join([*head, *lines, ""]))
