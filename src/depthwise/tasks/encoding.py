"""Raw text, as users give it, to ids."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase


def encoded(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
    """The ids of each text, its end of sequence included."""
    if not texts:
        return []
    rows = tokenizer(
        list(texts),
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )["input_ids"]
    return [np.array(ids, np.int64) for ids in rows]


def shortened(ids: npt.NDArray[np.integer], limit: int | None) -> npt.NDArray[np.integer]:
    """The same ids where there are no more than the limit, else the first ones and the end of sequence."""
    return ids if limit is None or len(ids) <= limit else np.concatenate([ids[: limit - 1], ids[-1:]])
