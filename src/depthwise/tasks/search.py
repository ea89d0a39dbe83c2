"""How text is searched for: what a search may not do, and what of its outcome counts."""

from typing import Any

import torch
from transformers import LogitsProcessor, NoRepeatNGramLogitsProcessor

from depthwise.config import SearchConfig
from depthwise.shapes import Bool, Float, Int, Tensor


def search_options(search: SearchConfig) -> dict[str, Any]:
    """What Transformers' ``generate`` is told; a greedy search knows no penalty."""
    options: dict[str, Any] = {"num_beams": search.num_beams, "do_sample": False}
    if search.num_beams > 1:
        options |= {"length_penalty": search.length_penalty, "early_stopping": search.early_stopping}
    return options


def repeats_blocked(search: SearchConfig, eos_id: int) -> list[LogitsProcessor]:
    """What forbids repeated n-grams, where the search has any to forbid."""
    return [NoRepeatedNgram(search.no_repeat_ngram, eos_id)] if search.no_repeat_ngram else []


class EndAtLimit(LogitsProcessor):
    """Ends each row at its own limit, so that what a row becomes does not depend on the rows beside it."""

    def __init__(self, limits: Int[Tensor, "B"], eos_id: int) -> None:
        self.limits, self.eos_id = limits, eos_id

    def __call__(self, input_ids: Int[Tensor, "R T"], scores: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """``input_ids`` begin with the start token; rows of the same source stand together."""
        limits = self.limits.repeat_interleave(len(input_ids) // len(self.limits))
        must_end = (input_ids.shape[1] >= limits).unsqueeze(1)
        is_end = torch.arange(scores.shape[1], device=scores.device) == self.eos_id
        return scores.masked_fill(must_end & ~is_end, -torch.inf)


class NoRepeatedNgram(LogitsProcessor):
    """Forbids every token that would complete an n-gram which the row has already (Paulus et al. 2018).

    A text may always end: the end of sequence, which decoders and prompts also start from, is no part of any n-gram.
    """

    def __init__(self, size: int, eos_id: int) -> None:
        self.blocking, self.eos_id = NoRepeatNGramLogitsProcessor(size), eos_id

    def __call__(self, input_ids: Int[Tensor, "R T"], scores: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """``input_ids`` begin with the start token, behind padding if any, which no text contains again."""
        blocked: Tensor = self.blocking(input_ids, scores)
        blocked[:, self.eos_id] = scores[:, self.eos_id]
        return blocked


def until_end(tokens: Int[Tensor, "B M"], eos_id: int) -> Bool[Tensor, "B M"]:
    """Which tokens stand before the first end of sequence or are it; others only fill up a batch."""
    ends = (tokens == eos_id).long()
    return ends.cumsum(1) - ends == 0
