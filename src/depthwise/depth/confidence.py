"""How sure a model is after a block, and how sure is enough.

All measures rise with certainty, so that one rule serves them: a token leaves where confidence reaches its threshold.

| measure | of | value | source |
|---|---|---|---|
| ``max_probability`` | scores | max p | Elbayad et al. 2020, EE-LLM |
| ``margin`` | scores | p of the first guess less p of the second | CALM (Schuster et al. 2022) |
| ``entropy`` | scores | Σ p log p, which is −H; DeeBERT's threshold S is −S here | DeeBERT (Xin et al. 2020) |
| ``normalized_entropy`` | scores | 1 − H / log V; FastBERT's speed s is 1 − s here | FastBERT (Liu et al. 2020) |
| ``saturation`` | states | cosine of the states before and after a block | CALM |
"""

import math

import torch
from torch.nn import functional as F

from depthwise.config.depth import DECAYS, MEASURES
from depthwise.errors import InputError
from depthwise.shapes import Bool, Float, Int, Tensor

OF_SCORES = tuple(measure for measure in MEASURES if measure != "saturation")


def score_confidence(measure: str, log_probs: Float[Tensor, "... V"]) -> Float[Tensor, "..."]:
    """A measure of the distribution that an exit gives."""
    if measure not in OF_SCORES:
        raise InputError(f'"{measure}" is no measure of scores; choose among {", ".join(OF_SCORES)}')
    if measure == "max_probability":
        return log_probs.max(-1).values.exp()
    if measure == "margin":
        if log_probs.shape[-1] == 1:
            return torch.ones_like(log_probs[..., 0])
        first, second = log_probs.topk(2, dim=-1).values.exp().unbind(-1)
        return first - second
    negative = torch.where(log_probs == -torch.inf, 0.0, log_probs.exp() * log_probs).sum(-1)
    if measure == "entropy":
        return negative
    return 1 + negative / math.log(max(2, log_probs.shape[-1]))


def saturation(before: Float[Tensor, "... D"], after: Float[Tensor, "... D"]) -> Float[Tensor, "..."]:
    """Cosine of the states before and after a block: 1 where the block no longer turns them."""
    return F.cosine_similarity(before, after, dim=-1)


def decayed_threshold(
    threshold: float, steps: Int[Tensor, "..."], *, length: int, rate: float = 4.0, form: str = "code"
) -> Float[Tensor, "..."]:
    """CALM's threshold at each step t of at most ``length``: strict for the first tokens, which later ones build on.

    code:  0.9·λ + 0.1·λ·exp(−τ·t/N)        (the released code and FREE)
    paper: 0.9·λ + 0.1·exp(−τ·t/N), cut to [0, 1]
    """
    if form not in DECAYS:
        raise InputError(f'the form of the decay is "{form}", but may be {" or ".join(DECAYS)}')
    decay = torch.exp(-rate * steps.to(torch.float32) / length)
    if form == "code":
        return 0.9 * threshold + 0.1 * threshold * decay
    return (0.9 * threshold + 0.1 * decay).clamp(0.0, 1.0)


def agreement(count: Int[Tensor, "*batch"], same: Bool[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
    """How many blocks in a row have said the same, after one more: PABEE's counter (Zhou et al. 2020)."""
    return torch.where(same, count + 1, 0)
