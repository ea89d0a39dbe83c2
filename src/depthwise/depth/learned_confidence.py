"""Leaving where a classifier says that going on would change nothing."""

import torch
from torch import nn
from torch.nn import functional as F

from depthwise.config.depth import LearnedConfidenceConfig
from depthwise.depth.policy import Lesson, Policy, State, Visit
from depthwise.depth.thresholds import threshold_at
from depthwise.kernels.weights import at_least_float32
from depthwise.shapes import Bool, Float, Tensor


class LearnedConfidence(Policy):
    """A token leaves where it is likely enough that the last exit would say the same.

        c_n = σ(w·hⁿ + b)        leave at the first n with c_n ≥ τ_n; thresholds as for ``confidence``

        loss = Σ_t mean_{n<N} weight · BCE(c_n, a_n)        a_n: the first guess of exit n is that of the last

    One classifier serves all exits. Where ``a`` is true the weight is the share of tokens for which it is not, and the
    other way round: of the tokens of a batch, each exit's two classes count the same. States are constants to it:
    training it leaves the rest of the model alone.

    Decides: at every exit, for every token by itself.
    Source: Schuster et al. 2022, "Confident Adaptive Language Modeling" (CALM).
    Choose it: for a model that is finished and should not change. ``poisson_binomial`` learns depth together with the
    exits.
    Needs: exits that were trained, and its classifier trained after them.
    """

    needs_training = True

    def __init__(self, options: LearnedConfidenceConfig, *, width: int) -> None:
        super().__init__()
        self.options = options
        self.classifier = nn.Linear(width, 1)

    def leaving(self, visit: Visit, state: State) -> tuple[Bool[Tensor, "B T"], State]:
        return self._logits(visit.hidden).sigmoid() >= threshold_at(self.options, visit), state

    def losses(self, lesson: Lesson) -> dict[str, Float[Tensor, ""]]:
        logits = torch.stack([self._logits(hidden.detach()) for hidden in lesson.hidden[:-1]])
        agrees = lesson.agrees[:-1]
        weight = _balanced(agrees, lesson.valid).to(logits.dtype)
        summed = F.binary_cross_entropy_with_logits(logits, agrees.to(logits.dtype), weight=weight, reduction="sum")
        return {"confidence": summed / len(logits)}

    def _logits(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
        return at_least_float32(self.classifier(hidden)).squeeze(-1)


def _balanced(agrees: Bool[Tensor, "E B T"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "E B T"]:
    """The share of the other class among the tokens of an exit; 0 without a label."""
    share = (agrees & valid).sum((1, 2), keepdim=True) / valid.sum().clamp(min=1)
    return torch.where(agrees, 1 - share, share) * valid
