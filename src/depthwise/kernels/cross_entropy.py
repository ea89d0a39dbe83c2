"""Cross-entropy against smoothed targets, summed over rows: scores are read once forward and once backward."""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from depthwise.errors import InputError
from depthwise.kernels.backend import pick_for_training
from depthwise.kernels.plan import Plan
from depthwise.kernels.tiles import power_of_two
from depthwise.shapes import Float, Int, Tensor

LARGEST_BLOCK = 2048
"""Scores that a program takes at once. Many small programs keep more reads in flight than few large ones, and what
is masked in the last block of a row is computed for nothing."""
ELEMENTS_PER_WARP = 512


def smoothed_cross_entropy(
    logits: Float[Tensor, "M V"],
    labels: Int[Tensor, "M"],
    smoothing: float,
    *,
    over_others: bool = False,
    ignored: int = -100,
    backend: str = "auto",
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Sums over all rows whose label is not ``ignored``: of the loss, and of the plain negative log-likelihood.

    Per row, with log-probabilities ℓ and label y, the loss is

        over all types:     −(1 − ε)·ℓ_y − ε/V · Σᵥ ℓᵥ
        over the others:    −(1 − ε)·ℓ_y − ε/(V − 1) · (Σᵥ ℓᵥ − ℓ_y)

    Computed in float32 at least; no target distribution is built. The likelihood carries no gradient. Triton serves
    passes of training (see ``pick_for_training``).
    """
    if labels.shape != logits.shape[:1]:
        raise InputError(f"{labels.numel()} labels do not fit scores of shape {tuple(logits.shape)}; give one per row")
    run = IMPLEMENTATIONS[pick_for_training(backend, logits)]
    return run(logits, labels, SmoothedTarget(smoothing, logits.shape[-1], over_others, ignored))


@dataclass(frozen=True)
class SmoothedTarget:
    """How the mass of a target is shared among V types."""

    smoothing: float
    num_types: int
    over_others: bool
    ignored: int

    @property
    def of_every(self) -> float:
        """What every type gets."""
        return self.smoothing / (self.num_types - self.over_others) if self.smoothing else 0.0

    @property
    def of_label(self) -> float:
        """What the label gets on top."""
        return 1 - self.smoothing - (self.of_every if self.over_others else 0.0)


def smoothed_cross_entropy_reference(logits: Tensor, labels: Tensor, target: SmoothedTarget) -> tuple[Tensor, Tensor]:
    """Torch's own operators, from one log-softmax."""
    # The dtype is given and not cast to before: for float16, a GPU then reads and writes all scores once less each way.
    log_probs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    nll = F.nll_loss(log_probs, labels, ignore_index=target.ignored, reduction="sum")
    smoothing, num_types = target.smoothing, target.num_types
    if not smoothing:
        return nll, nll.detach()
    uniform = -log_probs.sum(-1).masked_fill(labels == target.ignored, 0.0).sum()
    if target.over_others:
        return (1 - smoothing) * nll + smoothing / (num_types - 1) * (uniform - nll), nll.detach()
    return (1 - smoothing) * nll + smoothing / num_types * uniform, nll.detach()


def smoothed_cross_entropy_triton(logits: Tensor, labels: Tensor, target: SmoothedTarget) -> tuple[Tensor, Tensor]:
    """One kernel forward and one backward, besides the sums."""
    total, nll = SmoothedCrossEntropy.apply(logits, labels.contiguous(), target)
    return total, nll


IMPLEMENTATIONS = {"reference": smoothed_cross_entropy_reference, "triton": smoothed_cross_entropy_triton}


class SmoothedCrossEntropy(torch.autograd.Function):
    """The kernels and their gradients."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, target: SmoothedTarget) -> tuple[Tensor, Tensor]:
        logits = logits.contiguous()
        losses, nlls, *kept = (logits.new_empty(len(labels), dtype=torch.float32) for _ in range(4))
        if len(labels):
            plan = plan_forward(target.num_types, target.smoothing > 0, target.ignored)
            plan.launch(len(labels), (logits, labels, losses, nlls, *kept), (target.of_label, target.of_every))
        ctx.save_for_backward(logits, labels, *kept)
        ctx.target = target
        total, nll = losses.sum(), nlls.sum()
        ctx.mark_non_differentiable(nll)
        ctx.set_materialize_grads(False)  # that of the likelihood would be filled with zeros
        return total, nll

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        return (_gradients_once if torch.is_grad_enabled() else _gradients)(ctx, gradient)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    logits, labels, pivots, log_sums = ctx.saved_tensors
    target: SmoothedTarget = ctx.target
    out = torch.empty_like(logits)
    if len(labels):
        plan = plan_backward(target.num_types, target.ignored)
        tensors = (gradient, logits, labels, pivots, log_sums, out)
        plan.launch(len(labels), tensors, (target.of_label, target.of_every))
    return out, None, None


_gradients_once = once_differentiable(_gradients)
"""The same where the backward pass is recorded: whoever differentiates it is told that this cannot be."""


@lru_cache(maxsize=1024)
def plan_forward(num_types: int, smooth: bool, ignored: int) -> Plan:
    """How rows of so many scores are gone through, for any number of them."""
    block, num_warps = _block(num_types)
    constants = {"NUM_TYPES": num_types, "BLOCK": block, "SMOOTH": smooth, "IGNORED": ignored}
    return Plan(_kernels().cross_entropy_rows, constants, num_warps, 1, 1)


@lru_cache(maxsize=1024)
def plan_backward(num_types: int, ignored: int) -> Plan:
    """The same for gradients."""
    block, num_warps = _block(num_types)
    constants = {"NUM_TYPES": num_types, "BLOCK": block, "IGNORED": ignored}
    return Plan(_kernels().cross_entropy_rows_backward, constants, num_warps, 1, 1)


def _block(num_types: int) -> tuple[int, int]:
    """Scores at once, and warps for them."""
    block = min(LARGEST_BLOCK, power_of_two(num_types))
    return block, max(1, block // ELEMENTS_PER_WARP)


@cache
def _kernels() -> Any:
    """The file that needs Triton, imported when it is first needed."""
    from depthwise.kernels import triton_cross_entropy

    return triton_cross_entropy
