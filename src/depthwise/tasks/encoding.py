"""Raw text, as users give it, to ids."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase


def encoded(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int | None) -> list[npt.NDArray[np.int64]]:
    """The ids of each text, its end of sequence included; longer ones are cut before their last id."""
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
    if limit is not None:
        rows = [ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]] for ids in rows]
    return [np.array(ids, np.int64) for ids in rows]
