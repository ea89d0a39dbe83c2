"""Where a token leaves, as a distribution over N exits.

Each of the first N − 1 exits has a chance X_n = σ(x_n) of keeping those who come to it; who passes all of them leaves
at the last (a Poisson-binomial model, "geometric-like" in Elbayad et al. 2020):

    q(n) = X_n · Π_{m<n} (1 − X_m)    for n < N,        q(N) = Π_{m<N} (1 − X_m)

A depth is counted from 1: index n of these tensors is depth n + 1.
"""

import torch
from torch.nn import functional as F

from depthwise.errors import InputError
from depthwise.shapes import Bool, Float, Int, Tensor


def log_exit_probabilities(logits: Float[Tensor, "M *batch"]) -> Float[Tensor, "N *batch"]:
    """log q of all N = M + 1 exits from the logits x of the first M, without ever leaving the logarithm."""
    keeps, passes = F.logsigmoid(logits), F.logsigmoid(-logits)
    nobody_yet = torch.zeros_like(logits[:1]) if len(logits) else logits.new_zeros(1, *logits.shape[1:])
    arrives = torch.cat([nobody_yet, passes.cumsum(0)])
    return torch.cat([keeps + arrives[:-1], arrives[-1:]])


def first_exit(chances: Float[Tensor, "M *batch"], threshold: float = 0.5) -> Int[Tensor, "*batch"]:
    """The depth at which a token leaves: the first exit whose chance exceeds the threshold, or the last."""
    num_layers = len(chances) + 1
    depths = torch.arange(1, num_layers, device=chances.device).view(-1, *(1,) * (chances.dim() - 1))
    leaves = torch.where(chances > threshold, depths, num_layers)
    return leaves.min(0).values if len(chances) else leaves.new_full(chances.shape[1:], num_layers)


def quantile_exit(log_probs: Float[Tensor, "N *batch"], quantile: float = 0.5) -> Int[Tensor, "*batch"]:
    """The first depth by which a share of at least ``quantile`` has left (Balagansky & Gavrilov 2022)."""
    if not 0 < quantile <= 1:
        raise InputError(f"the quantile is {quantile}, but lies above 0 and at most at 1")
    gone = log_probs.exp().cumsum(0) >= quantile
    return 1 + (~gone[:-1]).sum(0)


def expected_depth(log_probs: Float[Tensor, "N *batch"]) -> Float[Tensor, "*batch"]:
    """Σ_n n·q(n)."""
    depths = torch.arange(1, len(log_probs) + 1, device=log_probs.device, dtype=log_probs.dtype)
    return torch.einsum("n,n...->...", depths, log_probs.exp())


def expected_loss(losses: Float[Tensor, "N *batch"], log_probs: Float[Tensor, "N *batch"]) -> Float[Tensor, "*batch"]:
    """Σ_n q(n)·loss(n), what PonderNet trains instead of following an oracle (Banino et al. 2021)."""
    return (losses * log_probs.exp()).sum(0)


def geometric_divergence(log_probs: Float[Tensor, "N *batch"], chance: float) -> Float[Tensor, "*batch"]:
    """KL(q ‖ p) to a geometric prior of that chance, cut at N, whose last exit takes what remains."""
    if not 0 < chance < 1:
        raise InputError(f"the chance of the geometric prior is {chance}, but lies between 0 and 1")
    logit = torch.full_like(log_probs[:-1], chance).logit()
    prior = log_exit_probabilities(logit)
    terms = log_probs.exp() * (log_probs - prior)
    return terms.masked_fill(log_probs == -torch.inf, 0.0).sum(0)


def depth_cross_entropy(
    log_probs: Float[Tensor, "N *batch"],
    depths: Int[Tensor, "*batch"],
    valid: Bool[Tensor, "*batch"] | None = None,
) -> Float[Tensor, ""]:
    """Mean of −log q(depth) over what is valid; depths count from 1, and 0 stands for padding."""
    counted = depths > 0 if valid is None else valid & (depths > 0)
    found = log_probs.gather(0, (depths.clamp(min=1) - 1).unsqueeze(0)).squeeze(0)
    return -torch.where(counted, found, 0.0).sum() / counted.sum().clamp(min=1)
