"""What gates on layers are drawn to: a prior, and a number of layers (Li et al. 2020, section 2.2)."""

import math

import torch
from torch.nn import functional as F

from depthwise.shapes import Float, Tensor

TINY = 1e-7


def bernoulli_kl(logits: Float[Tensor, "*rows N"], prior: Float[Tensor, "..."] | float) -> Float[Tensor, "*rows"]:
    """Σ π·log(π/ρ) + (1 − π)·log((1 − π)/(1 − ρ)) over layers, with π = σ(α); 0 where π = ρ and nowhere else."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    rho = torch.as_tensor(prior, dtype=logits.dtype, device=logits.device).clamp(TINY, 1 - TINY)
    open_term = logits.sigmoid() * (F.logsigmoid(logits) - rho.log())
    closed_term = (-logits).sigmoid() * (F.logsigmoid(-logits) - (-rho).log1p())
    return (open_term + closed_term).sum(-1)


def aggregated_prior(probabilities: Float[Tensor, "G N"]) -> Float[Tensor, "N"]:
    """The mean over languages of every layer, which is no reason to change any of them: without a gradient."""
    return probabilities.detach().mean(0)


def fairseq_kl(samples: Float[Tensor, "G N"], prior: Float[Tensor, "N"] | None = None) -> Float[Tensor, "G"]:
    """Σ z·(log z − log ρ)/N of the released code, on samples; its prior is one half unless one is given."""
    log_prior = math.log(0.5) if prior is None else (prior + TINY).log()
    return (samples * ((samples + TINY).log() - log_prior)).sum(-1) / samples.shape[-1]


def fairseq_aggregated(samples: Float[Tensor, "G N"]) -> Float[Tensor, "N"]:
    """The prior of the released code: samples summed over languages, normalised over layers."""
    used = samples.detach().sum(0)
    return used / used.sum().clamp(min=TINY)


def depth_distance(used: Float[Tensor, "N"], target: float, *, squared: bool = False) -> Float[Tensor, ""]:
    """|Σ u − K|, or its square."""
    distance = used.sum() - target
    return distance.square() if squared else distance.abs()


def sharing_entropy(used: Float[Tensor, "N"]) -> Float[Tensor, ""]:
    """−Σ u·log u: 0 where every layer is used by all languages or by none.

    Layers that hard samples close for all have no gradient; theirs would be infinite.
    """
    return torch.special.entr(_unused_as_one(used)).sum()


def fairseq_sharing(used: Float[Tensor, "N"]) -> Float[Tensor, ""]:
    """The same of the released code, whose logarithm is a mere number: its gradient, −log u, opens no layer."""
    some = _unused_as_one(used)
    return -(some * some.detach().log()).sum()


def _unused_as_one(used: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    """u, but 1 without a gradient where it is 0: both are worth no entropy."""
    return torch.where(used > 0, used, 1.0)
