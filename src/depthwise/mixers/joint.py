"""Several linear maps of the same states as one product, where their weights lie side by side in memory.

Three small matrix products take a GPU almost as long as three large ones. Parameters are not joined: names, checkpoints
and optimisers know each by itself. Whoever lays out memory (``training.half_states``) may put some side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from depthwise.kernels.side_by_side import joined
from depthwise.shapes import Float, Tensor


@dataclass(frozen=True, eq=False)
class Joint:
    """``weight`` (n·E, D) and ``bias`` (n·E) are the memory in which those of n maps lie, in the order of ``maps``."""

    weight: Tensor
    bias: Tensor
    maps: Sequence[nn.Linear]

    def __call__(self, x: Float[Tensor, "*rows D"]) -> tuple[Float[Tensor, "*rows E"], ...]:
        """What every map makes of x. Gradients are those of each weight and bias by itself."""
        weights, biases = [linear.weight for linear in self.maps], [linear.bias for linear in self.maps]
        found: tuple[Tensor, ...] = _Joint.apply(x, self.weight, self.bias, *weights, *biases)
        return found

    def last(self, count: int) -> "Joint":
        """Of the last maps alone."""
        start = (len(self.maps) - count) * len(self.weight) // len(self.maps)
        return Joint(self.weight[start:], self.bias[start:], self.maps[-count:])


class _Joint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias).chunk(len(parts) // 2, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        num, (for_x, _, _, *for_parts) = len(gradients), ctx.needs_input_grad
        gradient = joined(gradients).flatten(0, -2)
        of_x = (gradient @ weight).view_as(x) if for_x else None
        nothing: Sequence[Tensor | None] = [None] * num
        of_weights = (gradient.t() @ x.flatten(0, -2)).chunk(num) if any(for_parts[:num]) else nothing
        of_biases = gradient.sum(0).chunk(num) if any(for_parts[num:]) else nothing
        return of_x, None, None, *of_weights, *of_biases
