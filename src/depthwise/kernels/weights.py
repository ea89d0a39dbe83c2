"""Kernel weights of a convolution before they meet the input: normalisation over the taps, then DropConnect."""

import torch
from torch.nn import functional as F

from depthwise.shapes import Float, Tensor

EPSILON = 1e-6


def normalize(weight: Float[Tensor, "*rest K"], kind: str) -> Float[Tensor, "*rest K"]:
    """Normalise a raw kernel over its K taps (Wu et al. 2019, Table 6; epsilon = 1e-6).

    Half precision is raised to float32, where the result stays: the taps are summed in it too.
    """
    weight = at_least_float32(weight)
    match kind:
        case "none":
            return weight
        case "softmax":
            return weight.softmax(-1)
        case "sigmoid":
            return weight.sigmoid()
        case "tanh":
            return weight.tanh()
        case "l1":
            return weight / (_norm(weight, 1) + EPSILON)
        case "l2":
            return weight / (_norm(weight, 2) + EPSILON)
        case "square":
            return weight.square()
        case "abs":
            return weight.abs()
        case "abs_l1":
            return weight.abs() / (_norm(weight, 1) + EPSILON)
        case "abs_l2":
            return weight.abs() / (_norm(weight, 2) + EPSILON)
        case _:
            raise AssertionError(f"unchecked kernel normalisation {kind}")


def drop_connect(
    weight: Float[Tensor, "*rest H K"], probability: float, *, shared: bool, rows: tuple[int, ...] = ()
) -> Float[Tensor, "..."]:
    """Multiply every kernel entry by Bernoulli(1 - p) / (1 - p), without renormalising (Wan et al. 2013).

    ``shared`` draws one mask per head and tap. Otherwise each leading index draws its own, after the weight has been
    expanded to ``rows`` where given (a fixed kernel has no rows of its own).
    """
    if probability == 0.0:
        return weight
    if shared:
        return weight * F.dropout(weight.new_ones(weight.shape[-2:]), probability)
    return F.dropout(weight.expand(*rows, -1, -1) if rows else weight, probability)


def at_least_float32(x: Tensor) -> Tensor:
    """Raise half precision to float32; leave float32 and float64 alone."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _norm(weight: Tensor, order: int) -> Tensor:
    return torch.linalg.vector_norm(weight, ord=order, dim=-1, keepdim=True)
