"""Linear maps as decoding wants them: those that share an input side by side, packed for few rows at a time."""

from collections.abc import Callable
from operator import attrgetter

import torch
from torch import nn
from torch.nn import functional as F

from depthwise.shapes import Float, Tensor

Map = Callable[[Tensor], Tensor]
"""From (..., inputs) to (..., outputs)."""

PACKED_FROM = 2**17
"""Weights of a matrix from which on an order of its own is worth the call of oneDNN, which takes 15 µs or more; smaller
matrices have been multiplied by then."""


class Packer:
    """Makes maps for about ``num_rows`` vectors at a time.

    A CPU spends the time of a step on carrying float32 weights to its arithmetic. For several vectors oneDNN does so
    fastest from an order of its own; for a single one, matrices are read fastest whose rows are long, which transposing
    gives to maps that widen. Both are copies. Elsewhere, and in other precisions, weights stay as they are. What
    autocast has rounded before is brought back, since oneDNN takes its own order in one precision alone.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def __call__(self, *maps: nn.Linear) -> Map:
        """One map to all outputs of these, one after the other."""
        return self.weights(*_joined(maps))

    def weights(self, weight: Float[Tensor, "_o _i"], bias: Float[Tensor, "_o"] | None) -> Map:
        """One map from its weights."""
        outputs, inputs = weight.shape
        if not can_pack(weight) or (self.num_rows == 1 and outputs < inputs):
            return lambda x: F.linear(x, weight, bias)
        if self.num_rows == 1:
            return _transposed(weight, bias)
        if weight.numel() < PACKED_FROM:
            return lambda x: F.linear(x, weight, bias)
        packed, precision = torch.ops.mkldnn._reorder_linear_weight(weight, self.num_rows), weight.dtype
        return lambda x: torch.ops.mkldnn._linear_pointwise(x.to(precision), packed, bias, "none", [], "")


def _joined(maps: tuple[nn.Linear, ...]) -> tuple[Tensor, Tensor | None]:
    weights, biases = [each.weight.detach() for each in maps], [each.bias for each in maps]
    if len(maps) == 1:
        return weights[0], None if biases[0] is None else biases[0].detach()
    assert all(bias is not None for bias in biases), "maps that are joined have biases"
    return torch.cat(weights), torch.cat([bias.detach() for bias in biases])


def can_pack(weight: Tensor) -> bool:
    """Whether there is a faster order for these weights."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def _transposed(weight: Tensor, bias: Tensor | None) -> Map:
    columns = weight.t().contiguous()

    def run(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        y = rows @ columns if bias is None else torch.addmm(bias, rows, columns)
        return y.view(*x.shape[:-1], -1)

    return run


_VERSION = attrgetter("_version")


class Weights:
    """The weights of modules, in which changes can be seen: their places, and how often each was changed in place."""

    def __init__(self, *modules: nn.Module) -> None:
        self._held = [part._parameters for module in modules for part in module.modules() if part._parameters]
        self._versions = self._now()

    def are_as_they_were(self) -> bool:
        return self._now() == self._versions

    def _now(self) -> list[int]:
        found = [weight for held in self._held for weight in held.values() if weight is not None]
        return [*map(Tensor.data_ptr, found), *map(_VERSION, found)]
