"""The depth that would have been best: what policies that estimate depth learn from (Elbayad et al. 2020).

An oracle looks at a score of every exit at every position, log-likelihoods of the right token (``likelihood``) or
whether it was the first guess (``correctness``), and takes

    depth = argmax_n  score[n] − λ·n        the lowest n among equals

for each token, after smoothing scores over time, or once for a whole sequence, from their sum. λ is the price of a
block. What an oracle says is a constant: no gradient comes back through it.
"""

import math

import torch

from depthwise.config.depth import NEVER_CORRECT
from depthwise.errors import InputError
from depthwise.shapes import Bool, Float, Int, Tensor


def token_oracle(
    scores: Float[Tensor, "N B T"],
    valid: Bool[Tensor, "B T"] | None = None,
    *,
    penalty: float = 0.0,
    smoothing: float = 0.0,
) -> Int[Tensor, "B T"]:
    """The best depth of every token, 1 to N, and 0 on padding.

    ``smoothing`` is σ of the kernel κ(t, t') = exp(−|t − t'|²/σ), normalised over the real tokens of a sequence so
    that ``penalty`` means the same for every σ. 0 looks at each token alone, infinity at the mean of the sequence.
    """
    _check(penalty, smoothing)
    smoothed = _smoothed(scores.detach(), valid, smoothing)
    return _masked(_first_best(smoothed, penalty), valid)


def sequence_oracle(
    scores: Float[Tensor, "N B T"], valid: Bool[Tensor, "B T"] | None = None, *, penalty: float = 0.0
) -> Int[Tensor, "B"]:
    """The best depth of every sequence, by the sum of the scores of its tokens."""
    _check(penalty, 0.0)
    scores = scores.detach()
    total = scores.sum(-1) if valid is None else scores.masked_fill(~valid, 0.0).sum(-1)
    return _first_best(total, penalty)


def correct_scores(
    correct: Bool[Tensor, "N B T"], *, never_correct: str = "first", dtype: torch.dtype = torch.float32
) -> Float[Tensor, "N B T"]:
    """Scores of the correctness oracle: 1 where an exit is right and else 0.

    With ``never_correct="last"`` a token that no exit gets right counts as one that the last exit gets right.
    """
    if never_correct not in NEVER_CORRECT:
        raise InputError(f'never_correct is "{never_correct}", but may be {" or ".join(NEVER_CORRECT)}')
    if never_correct == "last":
        hopeless = ~correct.any(0)
        correct = torch.cat([correct[:-1], (correct[-1] | hopeless).unsqueeze(0)])
    return correct.to(dtype)


def _first_best(scores: Float[Tensor, "N ..."], penalty: float) -> Int[Tensor, "..."]:
    """1 + the lowest index of the highest score less its price."""
    num_layers = scores.shape[0]
    depths = torch.arange(1, num_layers + 1, device=scores.device)
    net = scores - penalty * depths.to(scores.dtype).view(-1, *(1,) * (scores.dim() - 1))
    is_best = net == net.max(0, keepdim=True).values
    return torch.where(is_best, depths.view(-1, *(1,) * (scores.dim() - 1)), num_layers).min(0).values


def _smoothed(
    scores: Float[Tensor, "N B T"], valid: Bool[Tensor, "B T"] | None, smoothing: float
) -> Float[Tensor, "N B T"]:
    """Σ_t' κ(t, t')·score[t'] over the real tokens of a sequence, κ summing to 1 for every t."""
    if smoothing == 0:
        return scores
    if math.isinf(smoothing):  # scores that are equal over a sequence stay equal, however long it is
        if valid is None:
            return scores.mean(-1, keepdim=True).expand_as(scores)
        total = scores.masked_fill(~valid, 0.0).sum(-1, keepdim=True)
        return (total / valid.sum(-1, keepdim=True).clamp(min=1)).expand_as(scores)
    length = scores.shape[-1]
    steps = torch.arange(length, device=scores.device, dtype=scores.dtype)
    kernel = torch.exp(-((steps[:, None] - steps[None, :]) ** 2) / smoothing).expand(scores.shape[1], -1, -1)
    if valid is not None:
        kernel = kernel * valid[:, None, :].to(kernel.dtype)
        scores = scores.masked_fill(~valid, 0.0)
    kernel = kernel / kernel.sum(-1, keepdim=True).clamp(min=torch.finfo(kernel.dtype).tiny)
    return torch.einsum("bts,nbs->nbt", kernel, scores)


def _masked(depths: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None) -> Int[Tensor, "B T"]:
    return depths if valid is None else depths * valid


def _check(penalty: float, smoothing: float) -> None:
    if penalty < 0:
        raise InputError(f"the penalty of a block is {penalty}, but cannot be below 0")
    if smoothing < 0:
        raise InputError(f"the smoothing over time is {smoothing}, but cannot be below 0")
