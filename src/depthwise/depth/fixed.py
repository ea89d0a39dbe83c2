"""The same depth for all."""

import torch

from depthwise.config.depth import FixedDepthConfig
from depthwise.depth.policy import Context, Policy
from depthwise.shapes import Int, Tensor


class FixedDepth(Policy):
    """Every token runs the same number of blocks.

        depth(b, t) = n

    Decides: before the stack runs, for the whole model.
    Source: what every adaptive model has to be compared with.
    Choose it: to see what an exit is worth by itself, or where the cost of every token has to be known.
    Needs: an exit that was trained; no parameters of its own.
    """

    plans = True

    def __init__(self, options: FixedDepthConfig) -> None:
        super().__init__()
        self.options = options

    def plan(self, context: Context) -> Int[Tensor, "B T"]:
        return torch.full(context.shape, self.options.depth, device=context.steps.device)
