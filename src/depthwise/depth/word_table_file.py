"""A table of words and depths on disk, to be read by people too.

    # {"format": 1, "num_layers": 6, "tokenizer": …, "options": {…}, "labels": …, "documents": …, "unseen_depth": 4, …}
    word    depth   information     value   documents   bad     good
    great   1       0.0331          3.408   412         77      335

The first line says what the table was made for. Words are sorted by their values: what tells most comes first. A column
for each label has the documents of that label with the word.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from depthwise.config import WordDepthsConfig, as_dict
from depthwise.depth.mutual_information import WordCounts
from depthwise.depth.word_table import WordTable
from depthwise.errors import CheckpointError

FILE = "word-depths.tsv"
FORMAT = 1
COLUMNS = ("word", "depth", "information", "value", "documents")
NOTHING = "-"


def save_word_table(table: WordTable, folder: Path) -> None:
    """Write the table into the folder of a run."""
    with (folder / FILE).open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in _lines(table))


def load_word_table(folder: Path, *, tokenizer: str, num_layers: int) -> WordTable:
    """The table of a run, if it was made for this tokenizer and number of layers."""
    path = folder / FILE
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {FILE}, by which its words run; copy or train the run again") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; copy or train the run again") from None
    try:
        table = _parsed(lines)
    except _Damage as damage:
        raise CheckpointError(f"{path} is damaged: {damage}; copy or train the run again") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{path} is damaged or of another version; copy or train the run again") from None
    if table.tokenizer != tokenizer:
        raise CheckpointError(f"{path} was made for another tokenizer; use the run's own, or train again")
    if table.num_layers != num_layers:
        raise CheckpointError(
            f"{path} was made for {table.num_layers} layers, but the model has {num_layers}; train again"
        )
    return table


class _Damage(Exception):
    """What is wrong with a file, in words."""


def _lines(table: WordTable) -> Iterator[str]:
    counts = table.counts
    made_for = {
        "format": FORMAT,
        "num_layers": table.num_layers,
        "tokenizer": table.tokenizer,
        "options": as_dict(table.options),
        "labels": list(counts.labels),
        "documents": counts.documents.tolist(),
        "words": len(counts.words),
        "unseen_depth": table.unseen_depth,
        "summary": table.summary(),
    }
    yield f"# {json.dumps(made_for, ensure_ascii=False)}"
    yield "\t".join([*COLUMNS, *(_plain(label) for label in counts.labels)])
    values = table.depths if table.values is None else table.values
    frequencies = counts.frequencies()
    for place in np.argsort(values, kind="stable").tolist():
        columns = [
            counts.words[place],
            str(table.depths[place]),
            NOTHING if table.information is None else repr(float(table.information[place])),
            NOTHING if table.values is None else repr(float(table.values[place])),
            str(frequencies[place]),
            *map(str, counts.present[place].tolist()),
        ]
        yield "\t".join(columns)


def _parsed(lines: list[str]) -> WordTable:
    if len(lines) < 3 or not lines[0].startswith("# ") or lines[-1] != "":
        raise _Damage("its beginning or its end is missing")
    made_for: dict[str, Any] = json.loads(lines[0][2:])
    if made_for["format"] != FORMAT:
        raise _Damage("it was written by another version")
    labels, num_layers = tuple(made_for["labels"]), int(made_for["num_layers"])
    rows = [line.split("\t") for line in lines[2:-1]]
    if len(rows) != made_for["words"]:
        raise _Damage(f"it has {len(rows)} of {made_for['words']} words")
    width = len(COLUMNS) + len(labels)
    for number, row in enumerate(rows, start=3):
        if len(row) != width or not 1 <= int(row[1]) <= num_layers:
            raise _Damage(f"line {number} is no word with a depth from 1 to {num_layers}")
    present = np.array([row[len(COLUMNS) :] for row in rows]).astype(np.int64).reshape(len(rows), len(labels))
    counts = WordCounts(
        tuple(row[0] for row in rows), labels, present, np.array(made_for["documents"], np.int64).reshape(-1)
    )
    if len(set(counts.words)) != len(rows):
        raise _Damage("a word stands there twice")
    return WordTable(
        counts,
        np.array([int(row[1]) for row in rows], np.int64),
        int(made_for["unseen_depth"]),
        WordDepthsConfig(**made_for["options"]),
        num_layers,
        str(made_for["tokenizer"]),
        _numbers([row[2] for row in rows]),
        _numbers([row[3] for row in rows]),
    )


def _numbers(texts: list[str]) -> Any:
    return None if NOTHING in texts else np.array([float(text) for text in texts])


def _plain(label: str) -> str:
    return " ".join(label.split())
