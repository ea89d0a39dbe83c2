"""Depths that say nothing: drawn by lot."""

import torch

from depthwise.config.depth import UniformExitConfig
from depthwise.depth.exit_targets import depth_of_exit
from depthwise.depth.policy import Context, Policy
from depthwise.shapes import Int, Tensor

STEP = 0x9E3779B97F4A7C15 - 2**64
MIXING = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64), (31, 1))
"""What SplitMix64 (Steele et al. 2014) adds, and by what it shifts and multiplies; as signed numbers."""


class UniformExit(Policy):
    """Every token leaves at an exit that is drawn at random, each of the E as likely as the others.

        depth(b, t) = exit number hash(seed, t, S_b) mod E

    t counts the tokens of a sequence from 0, and S is how long its source is: 0 for a stack that reads none, and the
    length of the input itself where it leaves as a whole. A lot is the same whenever the same is asked again: in
    any batch, and for a whole text as for one token after the other.

    Decides: before the stack runs, for every token by itself.
    Source: Elbayad et al. 2020, "Depth-Adaptive Transformer" (exits drawn uniformly, beside fixed ones).
    Choose it: to see what exits are worth when depth carries no information; what a policy has learned is what it is
    better by, at the same mean depth.
    Needs: exits that were trained; no parameters of its own.
    """

    plans = True

    def __init__(self, options: UniformExitConfig) -> None:
        super().__init__()
        self.options = options

    def plan(self, context: Context) -> Int[Tensor, "B T"]:
        lots = torch.zeros_like(context.steps, dtype=torch.long)
        for part in (self.options.seed, context.steps, _lengths(context)):
            lots = _mixed(lots + STEP + part)
        return depth_of_exit(lots % len(context.exits), context.exits)


def _lengths(context: Context) -> Int[Tensor, "B 1"] | int:
    if context.source is None:
        return 0 if context.lengths is None else context.lengths.unsqueeze(1)
    if context.source_valid is None:
        return context.source.shape[1]
    return context.source_valid.sum(1, keepdim=True)


def _mixed(bits: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """All 64 bits changed by each of them; products go round where they are too large."""
    for shift, factor in MIXING:
        bits = (bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return bits
