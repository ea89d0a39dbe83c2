"""Dictionaries of fairseq: the types of a model row by row, as its embeddings count them."""

from collections.abc import Sequence
from pathlib import Path

from depthwise.errors import CheckpointError

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
"""Stand in front of every dictionary without being written in its file; their ids are 0 to 3."""
OVERWRITE = "#fairseq:overwrite"


def read_dictionary(path: Path) -> tuple[str, ...]:
    """All types in the order of their ids, the four special ones in front.

    A line is a type and its count. A type that comes again, with or without the mark that says so, takes a row of its
    own, as it did in training.
    """
    types = list(SPECIALS)
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                entry, space, count = line.rstrip().removesuffix(f" {OVERWRITE}").rpartition(" ")
                if not space or not count.isdecimal():
                    shown = line.rstrip()[:60]
                    found = f'expected a type and its count, got "{shown}"'
                    raise CheckpointError(f"{path}:{number}: {found}; give a dictionary that fairseq wrote")
                types.append(entry)
    except (OSError, UnicodeDecodeError):
        raise CheckpointError(f"{path} cannot be read as text in UTF-8; give a dictionary that fairseq wrote") from None
    return tuple(types)


def ids_by_type(types: Sequence[str]) -> dict[str, int]:
    """The id of every type, and a name for every id.

    Where a type comes twice the later row is the one in use, except that the special types stay what they are; the
    other row is called after the type and the number of the row.
    """
    last = {name: row for row, name in enumerate(types)}
    last.update((name, row) for row, name in enumerate(SPECIALS))
    ids: dict[str, int] = {}
    for row, name in enumerate(types):
        ids[name if last[name] == row else f"{name}#{row}"] = row
    return ids


def language_token(language: str) -> str:
    """The type that stands for a language in models of several."""
    return f"__{language}__"
