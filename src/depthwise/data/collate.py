"""Rows of a store as padded tensors, under the names that the models take them by."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from depthwise.data.store import Row
from depthwise.shapes import Bool, Int, Tensor

IGNORED = -100
"""Label of positions that carry no loss, as in Transformers."""


@dataclass(frozen=True)
class Seq2SeqCollator:
    """Source and target: ``input_ids``, ``attention_mask`` and, for rows with a second text, ``labels``.

    Labels are padded with ``IGNORED``, and rows that are to be ignored have nothing else.
    """

    pad_id: int
    pad_to_multiple: int = 1

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        batch = _inputs([row.texts[0] for row in rows], self.pad_id, self.pad_to_multiple)
        if all(len(row.texts) == 2 for row in rows):
            labels, _ = padded([row.texts[1] for row in rows], IGNORED, self.pad_to_multiple)
            batch["labels"] = labels.masked_fill(_ignored(rows)[:, None], IGNORED)
        return batch


@dataclass(frozen=True)
class ClassificationCollator:
    """One text, or two behind each other: ``input_ids``, ``attention_mask`` and, for rows with labels, ``labels``.

    Classes are integers, and ``IGNORED`` for rows that are to be ignored. Numbers are float32, and NaN for such rows:
    no number could stand for none, so that whoever computes the loss has to leave them out.
    """

    pad_id: int
    pad_to_multiple: int = 1

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        batch = _inputs([np.concatenate(row.texts) for row in rows], self.pad_id, self.pad_to_multiple)
        if all(row.label is not None for row in rows):
            labels = torch.tensor([row.label for row in rows])
            batch["labels"] = labels.masked_fill(_ignored(rows), torch.nan if labels.is_floating_point() else IGNORED)
        return batch


def padded(
    texts: Sequence[npt.NDArray[np.integer]], filler: int, multiple: int = 1
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Texts one below the other, filled up on the right to the longest or to the next multiple, and where they are."""
    longest = max(len(text) for text in texts)
    ids = np.full((len(texts), -(longest // -multiple) * multiple), filler, np.int64)
    lengths = np.array([len(text) for text in texts])
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    return torch.from_numpy(ids), torch.from_numpy(np.arange(ids.shape[1]) < lengths[:, None])


def _inputs(texts: Sequence[npt.NDArray[np.integer]], pad_id: int, multiple: int) -> dict[str, Tensor]:
    ids, valid = padded(texts, pad_id, multiple)
    return {"input_ids": ids, "attention_mask": valid.long()}


def _ignored(rows: Sequence[Row]) -> Bool[Tensor, "B"]:
    return torch.tensor([row.ignored for row in rows])
