"""Where tokens should have left, as the number of an exit: what policies that estimate depth are trained on.

Oracles speak of depths, and a price is one of blocks; classifiers know exits by number, the first being 1. With exits
after 2, 4 and 6 blocks, depth 4 is exit 2.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch

from depthwise.config.depth import OracleConfig, TokenOracleConfig
from depthwise.depth.exit_distributions import depth_cross_entropy
from depthwise.depth.oracles import correct_scores, sequence_oracle, token_oracle
from depthwise.depth.policy import Lesson
from depthwise.shapes import Float, Int, Tensor


def token_targets(lesson: Lesson, options: TokenOracleConfig) -> Int[Tensor, "B T"]:
    """The exit of every token, and 0 where there is no label. A constant: no gradient comes back through it."""
    scores = _scores_by_depth(lesson, options)
    depths = token_oracle(scores, lesson.valid, penalty=float(options.penalty), smoothing=float(options.smoothing))
    return exit_number(depths, lesson.context.exits) * lesson.valid


def sequence_targets(lesson: Lesson, options: OracleConfig) -> Int[Tensor, "B"]:
    """The exit of every sequence, and 0 where it has no label at all. A constant too."""
    depths = sequence_oracle(_scores_by_depth(lesson, options), lesson.valid, penalty=float(options.penalty))
    return exit_number(depths, lesson.context.exits) * lesson.valid.any(1)


def summed_cross_entropy(log_probs: Float[Tensor, "E *batch"], targets: Int[Tensor, "*batch"]) -> Float[Tensor, ""]:
    """Σ −log q(target) over all targets but 0."""
    return depth_cross_entropy(log_probs, targets) * (targets > 0).sum()


def exit_number(depths: Int[Tensor, "*batch"], exits: Sequence[int]) -> Int[Tensor, "*batch"]:
    """Which exit a depth belongs to, from 1."""
    return 1 + sum(((depths > exit_depth).long() for exit_depth in exits[:-1]), torch.zeros_like(depths))


def depth_of_exit(index: Int[Tensor, "*batch"], exits: Sequence[int]) -> Int[Tensor, "*batch"]:
    """The depth of an exit by its index, from 0."""
    depths = torch.full_like(index, exits[0])
    for number, (lower, higher) in enumerate(pairwise(exits), 1):
        depths = depths + (index >= number) * (higher - lower)
    return depths


def _scores_by_depth(lesson: Lesson, options: OracleConfig) -> Float[Tensor, "N B T"]:
    """The score of every depth; one without an exit has the lowest that there is, so that no oracle takes it."""
    if options.oracle == "likelihood":
        scores = -lesson.nll.detach()
    else:
        scores = correct_scores(lesson.correct, never_correct=options.never_correct, dtype=lesson.nll.dtype)
    exits = lesson.context.exits
    nowhere = torch.full_like(scores[0], torch.finfo(scores.dtype).min)
    by_exit = dict(zip(exits, scores, strict=True))
    return torch.stack([by_exit.get(depth, nowhere) for depth in range(1, exits[-1] + 1)])
