"""A tokenised corpus on disk, read through memory maps.

    meta.json              what it is, how large its files are, and what was left out
    text0.tokens           uint16 where the vocabulary allows, else int32: the ids of all first texts, one after another
    text0.offsets          int64: text i is tokens[offsets[i] : offsets[i + 1]]
    text0.marks            uint16: a number for every token, if there are any, such as the depth of its word
    text1.tokens, …        the same for second texts, if there are any
    labels                 int32 for classes, float32 for numbers, absent without labels
    lines                  int64: the line that the example stood on

Opening reads ``meta.json`` and looks at the sizes of the others. Nothing is loaded until an example is asked for, and
then only that. ``building.build_store`` writes it.
"""

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from depthwise.data.lines import BLOCK, LineReport
from depthwise.errors import DataError

FORMAT = 1
META = "meta.json"
LINES, LABELS = "lines", "labels"
OFFSETS = np.dtype(np.int64)
MARKS = np.dtype(np.uint16)
LABEL_TYPES = {"class": np.dtype(np.int32), "number": np.dtype(np.float32)}


def tokens_file(text: int) -> str:
    """The file that holds the ids of the first (0) or second (1) texts."""
    return f"text{text}.tokens"


def offsets_file(text: int) -> str:
    """The file that says where each of these texts begins and ends."""
    return f"text{text}.offsets"


def marks_file(text: int) -> str:
    """The file that holds a number for each of their ids."""
    return f"text{text}.marks"


@dataclass(frozen=True, slots=True)
class Row:
    """One example as ids. An ignored one is computed like any other but carries no loss; see ``batches``.

    ``marks`` has a number for every id, where words have numbers (``words``).
    """

    index: int
    texts: tuple[npt.NDArray[Any], ...]
    label: int | float | None
    ignored: bool = False
    marks: tuple[npt.NDArray[Any], ...] | None = None


class TokenStore:
    """Examples by number, as a data set for PyTorch's ``DataLoader``.

    It travels to other processes as the name of its folder. ``store[~i]`` is example i to be ignored, which is how
    ``TokenBatches`` fills a step that has no examples left for some process.
    """

    def __init__(self, folder: Path) -> None:
        meta = _read_meta(folder)
        try:
            self._map(folder, meta)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder / META} is damaged ({error!r}); remove {folder} to tokenise again") from None

    def _map(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder = folder
        self.vocab_size = int(meta["vocab_size"])
        self.label_kind: str | None = meta["label_kind"]
        self.label_names: tuple[str, ...] | None = None if meta["label_names"] is None else tuple(meta["label_names"])
        self.report = LineReport.from_dict(meta["report"])
        self.num_texts = int(meta["num_texts"])
        tokens = token_type(self.vocab_size)
        self._tokens = [_mapped(folder / tokens_file(text), tokens) for text in range(self.num_texts)]
        self._marks = None
        if meta.get("has_marks", False):
            self._marks = [_mapped(folder / marks_file(text), MARKS) for text in range(self.num_texts)]
        self._offsets = [_mapped(folder / offsets_file(text), OFFSETS) for text in range(self.num_texts)]
        self._lines = _mapped(folder / LINES, OFFSETS)
        self._labels = None if self.label_kind is None else _mapped(folder / LABELS, LABEL_TYPES[self.label_kind])

    def __reduce__(self) -> tuple[type["TokenStore"], tuple[Path]]:
        return type(self), (self.folder,)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Row:
        ignored = index < 0
        row = ~index if ignored else index
        if row >= len(self):
            raise IndexError(f"example {row} of {len(self)}")
        slices = [slice(offsets[row], offsets[row + 1]) for offsets in self._offsets]
        ids = tuple(tokens[here] for tokens, here in zip(self._tokens, slices, strict=True))
        marks = None
        if self._marks is not None:
            marks = tuple(numbers[here] for numbers, here in zip(self._marks, slices, strict=True))
        return Row(row, ids, None if self._labels is None else self._labels[row].item(), ignored, marks)

    def lengths(self) -> npt.NDArray[np.int32]:
        """How many ids every text has: one row per example, one column per text."""
        return np.stack([np.diff(offsets).astype(np.int32) for offsets in self._offsets], axis=1)

    def labels(self) -> npt.NDArray[Any]:
        """All labels, still on disk."""
        if self._labels is None:
            raise DataError(f"{self.folder} was tokenised without labels; name the field that holds them")
        return self._labels

    def line(self, index: int) -> int:
        """The line of its file that an example stood on, counted from 1."""
        return int(self._lines[index])


def token_type(vocab_size: int) -> np.dtype[Any]:
    """The smallest type that holds every id."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


def damage(folder: Path) -> str | None:
    """What is wrong with a store, judged by every byte of its files, or nothing."""
    try:
        files = _read_meta(folder)["files"]
        for name, checksum in files.items():
            if file_checksum(folder / name) != checksum:
                return f"{name} is not what was written"
    except (OSError, DataError, KeyError, TypeError, AttributeError):
        return "a part of it is missing or cannot be read"
    return None


def file_checksum(path: Path) -> list[int]:
    """Size and CRC-32 of a file, read block by block."""
    size, checksum = 0, 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            size += len(block)
            checksum = zlib.crc32(block, checksum)
    return [size, checksum]


def write_meta(folder: Path, meta: dict[str, Any], names: list[str]) -> None:
    """Complete a store whose files are written, and have all of it on the disk before it gets its name."""
    content = {"format": FORMAT, "files": {name: file_checksum(folder / name) for name in names}, **meta}
    (folder / META).write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    for name in (*names, META):
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())


def _read_meta(folder: Path) -> dict[str, Any]:
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        sizes = {name: size for name, (size, _) in meta["files"].items()}
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{folder} holds no tokenised corpus, or a damaged one; remove it to tokenise again") from None
    if meta.get("format") != FORMAT:
        raise DataError(f"{folder} was written by another version; remove it to tokenise again")
    if not whole:
        raise DataError(f"{folder} is damaged: a file has not its size; remove the folder to tokenise again")
    assert isinstance(meta, dict)
    return meta


def _mapped(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if path.stat().st_size == 0:  # which no system can map
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode="r")
