"""A chance of leaving at every exit."""

import torch
from torch import nn
from torch.nn import functional as F

from depthwise.config.depth import PoissonBinomialConfig
from depthwise.depth.exit_distributions import expected_loss, geometric_divergence, log_exit_probabilities
from depthwise.depth.exit_targets import summed_cross_entropy, token_targets
from depthwise.depth.policy import Lesson, Policy, State, Visit
from depthwise.kernels.weights import at_least_float32
from depthwise.shapes import Bool, Float, Tensor


class PoissonBinomial(Policy):
    """At every exit, a token leaves by a chance that its state there gives.

        X_n = σ(w_n·hⁿ + b_n)        q(n) = X_n · Π_{m<n} (1 − X_m),   what remains leaves at the last exit

        step:      leave at the first n with X_n > threshold
        quantile:  leave at the first n with Σ_{m≤n} q(m) ≥ threshold
        sample:    leave at n with probability q(n); random numbers come from torch's generator, one for each token

        oracle:         loss = −Σ_t log q_t(n*_t)        n* as for ``token``
        expected_loss:  loss = Σ_t Σ_n q_t(n)·nll[n, t]  +  β·Σ_t KL(q_t ‖ geometric prior)

    Ours -> symbols: beta -> β; ``shared`` makes all w_n and b_n one.

    Decides: at every exit, for every token by itself.
    Source: Elbayad et al. 2020, "Depth-Adaptive Transformer" (geometric-like); expected loss: Banino et al. 2021,
    "PonderNet"; quantile: Balagansky & Gavrilov 2022, "PALBERT".
    Choose it: where every token should decide by all that is known of it so far, for one dot product at each exit and
    without a look at scores.
    Needs: exits that were trained, and its classifiers trained on them. Where the losses of a
    lesson carry gradients (classifiers, taggers, answers), the expected loss trains exits too, each by its share; with
    a vocabulary they carry none, and it trains the chances alone.
    """

    needs_training = True

    def __init__(self, options: PoissonBinomialConfig, *, width: int, num_exits: int) -> None:
        super().__init__()
        self.options = options
        num_classifiers = 1 if options.shared else num_exits - 1
        self.classifiers = nn.ModuleList(nn.Linear(width, 1) for _ in range(num_classifiers))

    def leaving(self, visit: Visit, state: State) -> tuple[Bool[Tensor, "B T"], State]:
        """The state holds the logarithm of the chance of being here still, and where it is random, the numbers."""
        logits = self._logits(visit.hidden, visit.index)
        if self.options.decision == "step":
            return logits.sigmoid() > self.options.threshold, state
        if visit.index == 0:
            state = {"remains": torch.zeros_like(logits)}
            if self.options.decision == "sample":
                state["drawn"] = torch.rand_like(logits)
        state = {**state, "remains": state["remains"] + F.logsigmoid(-logits)}
        gone = -torch.expm1(state["remains"])
        if self.options.decision == "sample":
            return gone > state["drawn"], state
        return gone >= self.options.threshold, state

    def losses(self, lesson: Lesson) -> dict[str, Float[Tensor, ""]]:
        log_probs = log_exit_probabilities(
            torch.stack(
                [self._logits(self._features(hidden), index) for index, hidden in enumerate(lesson.hidden[:-1])]
            )
        )
        if self.options.objective == "oracle":
            return {"exit": summed_cross_entropy(log_probs, token_targets(lesson, self.options))}
        expected = expected_loss(lesson.nll.masked_fill(~lesson.valid, 0.0), log_probs)
        divergence = geometric_divergence(log_probs, self.options.prior)
        return {
            "expected_loss": expected.masked_fill(~lesson.valid, 0.0).sum(),
            "divergence": self.options.beta * divergence.masked_fill(~lesson.valid, 0.0).sum(),
        }

    def _features(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return hidden.detach() if self.options.detach_features else hidden

    def _logits(self, hidden: Float[Tensor, "B T D"], index: int) -> Float[Tensor, "B T"]:
        classifier = self.classifiers[0 if self.options.shared else index]
        return at_least_float32(classifier(hidden)).squeeze(-1)
