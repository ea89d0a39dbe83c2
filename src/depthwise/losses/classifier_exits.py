"""Losses of all exits of small heads: few classes, or numbers.

Scores of all exits are held at once, and gradients go through all that is returned: a policy that minimises its
expected loss trains the exits too.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from depthwise.errors import InputError
from depthwise.kernels.weights import at_least_float32
from depthwise.losses.cross_entropy import IGNORED, check_labels, summed_over_items
from depthwise.losses.distillation import DIVERGENCES
from depthwise.losses.exits import LABELS, ExitLoss, ExitStatistics, ExitTargets, exit_shares
from depthwise.losses.label_smoothing import label_smoothed_cross_entropy
from depthwise.shapes import Bool, Float, Int, Tensor


def class_exits(
    scores: Sequence[Float[Tensor, "B P C"]],
    labels: Int[Tensor, "B P"],
    weights: Sequence[float] | Float[Tensor, "E"] | None = None,
    num_items: Tensor | int | None = None,
    *,
    chosen: Int[Tensor, "B P"] | None = None,
    targets: ExitTargets = LABELS,
) -> ExitLoss:
    """Cross-entropy of exits from what each says of P places of every row; see ``exit_cross_entropy``."""
    check_labels(labels, scores[0].shape[-1])
    labels = labels.to(scores[0].device)
    is_valid = labels != IGNORED
    here, shares = _counted(is_valid, scores, weights, chosen)
    teacher = at_least_float32(scores[-1]).log_softmax(-1).detach()
    total, nlls = torch.zeros((), dtype=teacher.dtype, device=teacher.device), []
    for index, of_exit in enumerate(scores):
        own = labels.masked_fill(~here[index], IGNORED)
        log_probs = at_least_float32(of_exit).log_softmax(-1)
        share = targets.from_last if index < len(scores) - 1 else 0.0
        learned = log_probs.new_zeros(())
        if share:
            divergence = DIVERGENCES[targets.divergence](log_probs, teacher)
            learned = share * divergence.masked_fill(~here[index], 0.0).sum()
        if share < 1:
            one = labels.new_ones(())
            labelled = label_smoothed_cross_entropy(
                of_exit, own, targets.smoothing, one, over_others=targets.over_others
            ).loss
            learned = learned + (1 - share) * labelled
        if targets.teacher is not None:
            learned = targets.teacher.mixed(learned, of_exit, here[index], labels.new_ones(()))
        total = total + shares[index] * learned
        flat = F.nll_loss(log_probs.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
        nlls.append(flat.view(labels.shape))
    nll, guesses = torch.stack(nlls), torch.stack([of_exit.detach().argmax(-1) for of_exit in scores])
    statistics = ExitStatistics(nll, guesses, guesses == labels)
    return _loss(total, nll, here, num_items, is_valid.sum(), statistics)


def number_exits(
    scores: Sequence[Float[Tensor, "B C"]],
    labels: Tensor,
    problem: str,
    weights: Sequence[float] | Float[Tensor, "E"] | None = None,
    num_items: Tensor | int | None = None,
    *,
    chosen: Int[Tensor, "B 1"] | None = None,
    targets: ExitTargets = LABELS,
) -> ExitLoss:
    """The same for ``regression`` and ``multi_label_classification``, as ``classification_loss`` has them.

    What stands as ``nll`` is the loss of every row. There are no first guesses.
    """
    if targets.from_last:
        raise InputError("exits learn from the last one by its classes, and numbers have none; set distill to 0")
    if targets.teacher is not None:
        raise InputError("exits learn from another model by its classes, and numbers have none; leave it out")
    if labels.numel() != scores[0].numel():
        raise InputError(
            f"labels have shape {tuple(labels.shape)} but predictions have shape {tuple(scores[0].shape)}; "
            "give one number for each"
        )
    of_all = torch.stack([at_least_float32(of_exit) for of_exit in scores])
    wanted = labels.to(of_all).view_as(scores[0])
    is_known = ~wanted.isnan()
    if problem == "regression":
        each = (of_all - wanted).masked_fill(~is_known, 0.0).square()
    else:
        each = F.binary_cross_entropy_with_logits(of_all, wanted.expand_as(of_all), reduction="none")
    nll = each.sum(-1, keepdim=True)
    here, shares = _counted(is_known.any(-1, keepdim=True), scores, weights, chosen)
    total = torch.stack([share * nll[index].masked_fill(~here[index], 0.0).sum() for index, share in enumerate(shares)])
    nothing = torch.zeros_like(nll, dtype=torch.long)
    statistics = ExitStatistics(nll, nothing, nothing.bool())
    return _loss(total.sum(), nll, here, num_items, is_known.sum(), statistics)


def _counted(
    is_valid: Bool[Tensor, "B P"],
    scores: Sequence[Tensor],
    weights: Sequence[float] | Tensor | None,
    chosen: Int[Tensor, "B P"] | None,
) -> tuple[Bool[Tensor, "E B P"], Sequence[float | Tensor]]:
    """Where each exit counts, and its share of the loss."""
    if (weights is None) == (chosen is None):
        raise InputError("exits count by weights or by what tokens chose; give one of weights and chosen")
    if weights is not None:
        return is_valid.expand(len(scores), *is_valid.shape), exit_shares(weights, scores)
    assert chosen is not None
    numbers = torch.arange(len(scores), device=is_valid.device).view(-1, 1, 1)
    return (chosen.to(is_valid.device) == numbers) & is_valid, [1.0] * len(scores)


def _loss(
    total: Float[Tensor, ""],
    nll: Float[Tensor, "E B P"],
    here: Bool[Tensor, "E B P"],
    num_items: Tensor | int | None,
    num_here: Tensor,
    statistics: ExitStatistics,
) -> ExitLoss:
    sums = nll.detach().masked_fill(~here, 0.0).sum((1, 2))
    return ExitLoss(summed_over_items(total, num_items, num_here), sums, here.sum((1, 2)), statistics)
