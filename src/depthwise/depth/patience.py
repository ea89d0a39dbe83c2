"""Leaving once exits agree."""

import torch

from depthwise.config.depth import PatienceConfig
from depthwise.depth.confidence import agreement
from depthwise.depth.policy import Policy, State, Visit
from depthwise.shapes import Bool, Tensor


class Patience(Policy):
    """A token leaves once enough exits in a row have said what the one before said.

        count_n = count_{n−1} + 1 if ŷ_n = ŷ_{n−1} else 0        leave at the first n with count_n ≥ patience

    ŷ is the first guess among classes. Where a model estimates a number, its scores have width 1 and are that number
    itself; two of them are the same if they differ by less than ``tolerance``. The first exit has none to agree with:
    with patience p nobody leaves before exit p + 1.

    Decides: at every exit, for every token by itself.
    Source: Zhou et al. 2020, "BERT Loses Patience" (PABEE).
    Choose it: for regressors, which have no probabilities, and for classifiers whose probabilities cannot be trusted.
    It looks at the scores of every exit, which is dear with a large vocabulary.
    Needs: exits that were trained; no parameters of its own.
    """

    def __init__(self, options: PatienceConfig) -> None:
        super().__init__()
        self.options = options

    def leaving(self, visit: Visit, state: State) -> tuple[Bool[Tensor, "B T"], State]:
        """The state holds what the last exit said, and how many before it agreed."""
        is_number = visit.log_prob.shape[-1] == 1
        guess = visit.log_prob.squeeze(-1) if is_number else visit.log_prob.argmax(-1)
        if visit.index == 0:
            count = torch.zeros(guess.shape, dtype=torch.long, device=guess.device)
        else:
            difference = guess - state["guess"]
            count = agreement(
                state["count"], difference.abs() < self.options.tolerance if is_number else difference == 0
            )
        return count >= self.options.patience, {"guess": guess, "count": count}
