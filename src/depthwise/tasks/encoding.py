"""Raw text, as users give it, to ids, and what of a batch goes into an encoder."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from depthwise.data.rows import IdRow
from depthwise.data.store import MARKS
from depthwise.data.tokenizers import encoded as ids_of
from depthwise.data.words import Marks, TextMarks, encoded_with_marks
from depthwise.shapes import Tensor

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "depths")
PLANNED = ("depths", "attention_mask")
"""What stays on the host where depths are known before the model runs: it plans there."""
R = TypeVar("R", bound=IdRow)


def inputs_in(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What an encoder takes of a batch: all but the labels."""
    return {name: batch[name] for name in INPUTS if name in batch}


def placed(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """A batch to predict from, on the device of the model but for what the host plans by."""
    kept = PLANNED if "depths" in batch else ()
    return {name: value if name in kept else value.to(device) for name, value in batch.items()}


def portions(rows: Sequence[R], budget: int) -> Iterator[Sequence[R]]:
    """Rows in their order, as many at a time as a budget of tokens holds (rows times longest), but at least one."""
    begin, longest = 0, 0
    for place, row in enumerate(rows):
        longest = max(longest, len(row.ids))
        if place > begin and longest * (place + 1 - begin) > budget:
            yield rows[begin:place]
            begin, longest = place, len(row.ids)
    if rows:
        yield rows[begin:]


def padded_sizes(groups: Sequence[Sequence[IdRow]], budget: int) -> npt.NDArray[np.int32]:
    """Rows times longest of each group, as one column, but no more than a budget, which ``portions`` keeps to."""
    sizes = (len(rows) * max((len(row.ids) for row in rows), default=0) for rows in groups)
    return np.array([min(size, budget) for size in sizes], np.int32).reshape(-1, 1)


def encoded(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
    """The ids of each text, its end of sequence included."""
    return [np.array(ids, np.int64) for ids in ids_of(tokenizer, texts)]


def marked_ids(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], marks: TextMarks
) -> list[tuple[npt.NDArray[np.int64], Marks]]:
    """The ids of each text, as ``encoded`` gives them, with the mark of every id."""
    pairs = zip(*encoded_with_marks(tokenizer, texts, marks), strict=True)
    return [(np.array(ids, np.int64), np.array(numbers, MARKS)) for ids, numbers in pairs]


def least(*limits: int | None) -> int | None:
    """The strictest limit, where there is any."""
    return min((limit for limit in limits if limit is not None), default=None)


def shortened(ids: npt.NDArray[np.integer], limit: int | None) -> npt.NDArray[np.integer]:
    """The same ids where there are no more than the limit, else the first ones and the end of sequence."""
    return ids if limit is None or len(ids) <= limit else np.concatenate([ids[: limit - 1], ids[-1:]])
