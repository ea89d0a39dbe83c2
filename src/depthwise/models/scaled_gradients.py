"""A block whose parameters learn more, or less, from the exit right behind it than from those above.

    gradient of its parameters:   γ·(own exit) + (all above)
    gradient of what it reads:      (own exit) + (all above)

(Elbayad et al. 2020, gradient scaling.) The block runs once; backward asks it twice, once for each line.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from depthwise.shapes import Float, Tensor

Run = Callable[..., Float[Tensor, "B T D"]]
"""From what a block reads to its states."""


def run_scaled(
    run: Run, read: Sequence[Tensor], params: Sequence[Tensor], factor: float
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"]]:
    """The states after a block, for the blocks above, and the same again for its own exit.

    ``run`` takes what is ``read`` and uses the ``params``, of which only those that learn are to be given.
    """
    above, own = _Scaled.apply(run, factor, len(read), *read, *params)
    return above, own


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, factor: float, num_read: int, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        read, params = inputs[:num_read], inputs[num_read:]
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in read]
            states = run(*leaves)
        ctx.states, ctx.leaves, ctx.params, ctx.factor = states, leaves, params, factor
        return states.detach(), states.detach().clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor, own: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [leaf for leaf in ctx.leaves if leaf.requires_grad]
        found = iter(_gradients(ctx.states, wanted, above + own, keeps=bool(ctx.params)))
        of_read = [next(found) if leaf.requires_grad else None for leaf in ctx.leaves]
        of_params = _gradients(ctx.states, ctx.params, above + ctx.factor * own, keeps=False)
        del ctx.states, ctx.leaves
        return None, None, None, *of_read, *of_params


def _gradients(states: Tensor, inputs: Any, outer: Tensor, *, keeps: bool) -> tuple[Tensor | None, ...]:
    if not inputs:
        return ()
    return torch.autograd.grad(states, inputs, outer, retain_graph=keeps, allow_unused=True)


def own_factors(gamma: float, num_layers: int) -> tuple[float, ...]:
    """γ_n = γ·(N − n) of the blocks n from 1 to N; that of the last, which would be 0, is 1."""
    return (*(gamma * (num_layers - depth) for depth in range(1, num_layers)), 1.0)
