"""Kernel weights of a convolution before they meet the input: normalisation over the taps, then DropConnect."""

import torch
from torch.nn import functional as F

from depthwise.shapes import Float, Tensor

EPSILON = 1e-6
VECTOR = 16
"""Numbers of 32 bits that a CPU computes with at once. Torch takes the exponential of fewer in a row one by one."""
MANY = 512
"""From so many numbers on it is worth filling rows up to a whole vector: up to eight times as fast."""


def normalize(weight: Float[Tensor, "*rest K"], kind: str) -> Float[Tensor, "*rest K"]:
    """Normalise a raw kernel over its K taps (Wu et al. 2019, Table 6; epsilon = 1e-6).

    Half precision is raised to float32, where the result stays: the taps are summed in it too.
    """
    weight = at_least_float32(weight)
    match kind:
        case "none":
            return weight
        case "softmax":
            return _softmax(weight)
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


def _softmax(weight: Tensor) -> Tensor:
    """Over the last axis; short rows are filled up with what has no weight, where that is faster."""
    spare = VECTOR - weight.shape[-1]
    is_slow = weight.device.type == "cpu" and weight.dtype == torch.float32 and not torch.compiler.is_compiling()
    if spare <= 0 or not is_slow or weight.numel() < MANY:
        return weight.softmax(-1)
    return F.pad(weight, (0, spare), value=-torch.inf).softmax(-1)[..., :-spare]


def _norm(weight: Tensor, order: int) -> Tensor:
    return torch.linalg.vector_norm(weight, ord=order, dim=-1, keepdim=True)
