"""Gradients that are computed in the forward pass, piece by piece, and handed on in the backward pass.

A loss that is a sum over many pieces needs what lies between its inputs and a piece only while that piece is at hand.
What stays until the backward pass is one gradient for every input, however many pieces there were.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from depthwise.shapes import Float, Tensor


class EarlyGradients:
    """Gradients of loss = Σ share·total / count in the states and parameters of several exits, where they want any.

    With ``count`` = m·2^k, 1/2 ≤ m < 1, they are kept 2^k times too large: of a size that float16 can hold while they
    are computed, and without rounding when they are scaled back.
    """

    def __init__(
        self,
        states: Mapping[int, Float[Tensor, "M D"]],
        params: Mapping[int, Sequence[nn.Parameter]],
        count: Float[Tensor, ""],
    ) -> None:
        learns = torch.is_grad_enabled()
        self._states = {index: state for index, state in states.items() if learns and state.requires_grad}
        self._params = {
            index: [param for param in own if learns and param.requires_grad] for index, own in params.items()
        }
        self._of_states = {index: torch.empty_like(state) for index, state in self._states.items()}
        self._of_params = {
            param: torch.zeros_like(param, dtype=torch.promote_types(param.dtype, torch.float32))
            for own in self._params.values()
            for param in own
        }
        self._mantissa = torch.frexp(count).mantissa
        self._scale = self._mantissa / count

    def are_wanted(self, index: int) -> bool:
        """Whether anything of an exit learns."""
        return index in self._states or bool(self._params.get(index))

    def is_wanted_of_states(self, index: int) -> bool:
        return index in self._states

    def add(
        self,
        index: int,
        place: slice,
        states: Float[Tensor, "M D"],
        total: Float[Tensor, ""],
        share: float | Float[Tensor, ""],
    ) -> None:
        """Add those of share·total, which follows from the ``states`` at ``place`` and from parameters."""
        if not self.are_wanted(index):
            return
        leaves, params = [states] if index in self._states else [], self._params.get(index, [])
        scale = (share / self._mantissa).to(total.dtype)
        found = torch.autograd.grad(total, [*leaves, *params], scale, allow_unused=True)
        if leaves:
            assert found[0] is not None
            self._of_states[index][place] = found[0]
        for param, gradient in zip(params, found[len(leaves) :], strict=True):
            if gradient is not None:
                self._of_params[param] += gradient

    def behind(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The loss with these gradients, once they are complete."""
        inputs = [*self._states.values(), *self._of_params]
        if not inputs:
            return loss
        gradients = [*self._of_states.values(), *self._of_params.values()]
        attached: Tensor = _Attach.apply(loss, self._scale, *gradients, *inputs)
        return attached


class _Attach(torch.autograd.Function):
    """loss, scale, gradients, inputs → loss, whose gradient in each input is scale·gradient, as precise as the input.

    Gradients of half-precision parameters are sums in float32 and scaled before they are rounded: larger than what
    comes of them, they might be too large for float16.
    """

    @staticmethod
    def forward(ctx: Any, loss: Tensor, scale: Tensor, *rest: Tensor) -> Tensor:
        num = len(rest) // 2
        ctx.save_for_backward(scale, *rest[:num])
        ctx.dtypes = [wanted.dtype for wanted in rest[num:]]
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        scale, *gradients = ctx.saved_tensors
        scale = scale * outer
        scaled = [(gradient * scale).to(dtype) for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)]
        return (None, None, *(None for _ in gradients), *scaled)
