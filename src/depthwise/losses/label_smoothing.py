"""Cross-entropy against a softened target, which keeps a model from becoming too sure (Szegedy et al. 2016)."""

from typing import NamedTuple

import torch
from torch.nn import functional as F

from depthwise.errors import InputError
from depthwise.losses.cross_entropy import IGNORED, check_labels, summed_over_items
from depthwise.shapes import Float, Int, Tensor


class SmoothedLoss(NamedTuple):
    """``loss`` is what training minimises; ``nll_sum``, over ``num_tokens`` labels, is what perplexity is made of."""

    loss: Float[Tensor, ""]
    nll_sum: Float[Tensor, ""]
    num_tokens: Int[Tensor, ""]


def label_smoothed_cross_entropy(
    logits: Float[Tensor, "... V"],
    labels: Int[Tensor, "..."],
    smoothing: float,
    num_items: Tensor | int | None = None,
    *,
    over_others: bool = False,
) -> SmoothedLoss:
    """Cross-entropy against (1 − ε)·one-hot + ε·uniform, over all labels that are not ``IGNORED``.

    The uniform part covers all V types (Vaswani et al. 2017; fairseq until 2020) or, with ``over_others``, the V − 1
    types besides the label (fairseq since). Per token, with log-probabilities ℓ and label y,

        over all types:     −(1 − ε)·ℓ_y − ε/V · Σᵥ ℓᵥ
        over the others:    −(1 − ε)·ℓ_y − ε/(V − 1) · (Σᵥ ℓᵥ − ℓ_y)

    Computed in float32 from one log-softmax; no target distribution is built. The sum is divided as
    ``summed_over_items`` says. With ``smoothing`` 0 this is ``token_cross_entropy``. ``nll_sum`` carries no gradient.
    """
    if not 0 <= smoothing < 1:
        raise InputError(f"label smoothing is a share from 0 up to, but not including, 1; {smoothing} is none")
    num_types = logits.shape[-1]
    if over_others and num_types < 2:
        raise InputError("label smoothing over the other types needs a vocabulary of at least two")
    check_labels(labels, num_types)
    labels = labels.to(logits.device).flatten()
    # The dtype is given and not cast to before: for float16, a GPU then reads and writes all scores once less each way.
    log_probs = logits.flatten(0, -2).log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    nll = F.nll_loss(log_probs, labels, ignore_index=IGNORED, reduction="sum")
    is_counted = labels != IGNORED
    num_tokens = is_counted.sum()
    total = nll
    if smoothing:
        uniform = -log_probs.sum(-1).masked_fill(~is_counted, 0.0).sum()
        if over_others:
            total = (1 - smoothing) * nll + smoothing / (num_types - 1) * (uniform - nll)
        else:
            total = (1 - smoothing) * nll + smoothing / num_types * uniform
    return SmoothedLoss(summed_over_items(total, num_items, num_tokens), nll.detach(), num_tokens)
