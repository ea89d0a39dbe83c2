"""Rows of a store as padded tensors, under the names that the models take them by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from depthwise.data.store import Row
from depthwise.data.templates import PairForm
from depthwise.shapes import Bool, Int, Tensor

IGNORED = -100
"""Label of positions that carry no loss, as in Transformers."""


@dataclass(frozen=True)
class Seq2SeqCollator:
    """Source and target: ``input_ids``, ``attention_mask`` and, for rows with a second text, ``labels``.

    Labels are padded with ``IGNORED``, and rows that are to be ignored have nothing else.
    """

    pad_id: int

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        batch = _inputs([row.texts[0] for row in rows], self.pad_id)
        if all(len(row.texts) == 2 for row in rows):
            labels, _ = padded([row.texts[1] for row in rows], IGNORED)
            batch["labels"] = labels.masked_fill(_ignored(rows)[:, None], IGNORED)
        return batch


@dataclass(frozen=True)
class ClassificationCollator:
    """One text, or two behind each other: ``input_ids``, ``attention_mask`` and, for rows with labels, ``labels``.

    Two texts are put together in the form of their tokenizer, if that is given; with ``token_types`` there are
    ``token_type_ids`` too, 1 from the beginning of the second text on. Classes are integers, and ``IGNORED`` for rows
    that are to be ignored. Numbers are float32, and NaN for such rows: no number could stand for none, so that whoever
    computes the loss has to leave them out.
    """

    pad_id: int
    pair: PairForm | None = None
    token_types: bool = False

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        batch = _inputs([self._joined(row.texts) for row in rows], self.pad_id)
        if self.token_types:
            firsts = [self._second_from(row.texts) for row in rows]
            batch["token_type_ids"] = second_types(firsts, batch["attention_mask"])
        if all(row.label is not None for row in rows):
            labels = torch.tensor([row.label for row in rows])
            batch["labels"] = labels.masked_fill(_ignored(rows), torch.nan if labels.is_floating_point() else IGNORED)
        return batch

    def _joined(self, texts: tuple[npt.NDArray[Any], ...]) -> npt.NDArray[np.integer]:
        return np.concatenate(texts) if self.pair is None or len(texts) == 1 else self.pair.joined(*texts)

    def _second_from(self, texts: tuple[npt.NDArray[Any], ...]) -> int:
        return len(texts[0]) if self.pair is None or len(texts) == 1 else self.pair.second_from(texts[0])


def second_types(firsts: Sequence[int], mask: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Types of tokens: 0 for the first text and for padding, 1 from the place where the second begins."""
    places = torch.arange(mask.shape[1])
    return (places >= torch.tensor(firsts)[:, None]).long() * mask


def padded(texts: Sequence[npt.NDArray[np.integer]], filler: int) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Texts one below the other, filled up on the right to the longest, and where they are."""
    ids = np.full((len(texts), max(len(text) for text in texts)), filler, np.int64)
    lengths = np.array([len(text) for text in texts])
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    return torch.from_numpy(ids), torch.from_numpy(np.arange(ids.shape[1]) < lengths[:, None])


def lengthened(
    batch: Mapping[str, Tensor], fillers: Mapping[str, int], multiple: int, most: int | None = None
) -> dict[str, Tensor]:
    """A batch whose tensors with one entry per token are filled up to multiples of a length, or to ``most``."""
    return {
        name: _lengthened(value, fillers[name], multiple, most) if name in fillers and value.dim() == 2 else value
        for name, value in batch.items()
    }


def _lengthened(value: Tensor, filler: int, multiple: int, most: int | None) -> Tensor:
    length = value.shape[1]
    wanted = -(length // -multiple) * multiple
    missing = max(length, wanted if most is None else min(wanted, most)) - length
    return F.pad(value, (0, missing), value=filler) if missing else value


def _inputs(texts: Sequence[npt.NDArray[np.integer]], pad_id: int) -> dict[str, Tensor]:
    ids, valid = padded(texts, pad_id)
    return {"input_ids": ids, "attention_mask": valid.long()}


def _ignored(rows: Sequence[Row]) -> Bool[Tensor, "B"]:
    return torch.tensor([row.ignored for row in rows])
