"""Cross-entropy against a softened target, which keeps a model from becoming too sure (Szegedy et al. 2016)."""

from typing import NamedTuple

from depthwise.errors import InputError
from depthwise.kernels import smoothed_cross_entropy
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
    types besides the label (fairseq since); ``smoothed_cross_entropy`` has both formulas. The sum is divided as
    ``summed_over_items`` says. With ``smoothing`` 0 this is ``token_cross_entropy``. ``nll_sum`` carries no gradient.
    """
    if not 0 <= smoothing < 1:
        raise InputError(f"label smoothing is a share from 0 up to, but not including, 1; {smoothing} is none")
    num_types = logits.shape[-1]
    if over_others and num_types < 2:
        raise InputError("label smoothing over the other types needs a vocabulary of at least two")
    check_labels(labels, num_types)
    labels = labels.to(logits.device).flatten()
    total, nll_sum = smoothed_cross_entropy(
        logits.flatten(0, -2), labels, smoothing, over_others=over_others, ignored=IGNORED
    )
    num_tokens = (labels != IGNORED).sum()
    return SmoothedLoss(summed_over_items(total, num_items, num_tokens), nll_sum, num_tokens)
