"""The depth of every token, guessed at the first exit."""

from torch import nn

from depthwise.config.depth import TokenExitConfig
from depthwise.depth.exit_targets import summed_cross_entropy, token_targets
from depthwise.depth.policy import Lesson, Policy, State, Visit
from depthwise.kernels.weights import at_least_float32
from depthwise.shapes import Bool, Float, Tensor


class TokenExit(Policy):
    """Every token guesses once, from its state at the first exit, where it will leave.

        q_t(n) = softmax(W·h¹_t + b)        depth_t = argmax_n q_t(n)
        loss = −Σ_t log q_t(n*_t)           n*_t = argmax_n Σ_t' κ(t, t')·score[n, t'] − λ·n

    Ours -> symbols: penalty -> λ, smoothing -> σ of κ(t, t') = exp(−|t − t'|²/σ); score is what ``oracle`` says.

    Decides: at the first exit, for every token by itself.
    Source: Elbayad et al. 2020, "Depth-Adaptive Transformer" (token-specific depth, multinomial).
    Choose it: where depth should be known early and deciding should cost next to nothing; it never looks at scores.
    ``poisson_binomial`` decides later and so knows more. With ``each_token``, never_correct = last and an encoder
    that classifies texts, it is the halting unit that Liu et al. (2021) compare with.
    Needs: exits that were trained, and its classifier trained on them.
    """

    needs_training = True

    def __init__(self, options: TokenExitConfig, *, width: int, num_exits: int) -> None:
        super().__init__()
        self.options = options
        self.classifier = nn.Linear(width, num_exits)

    @property
    def each_token(self) -> bool:
        return self.options.each_token

    def leaving(self, visit: Visit, state: State) -> tuple[Bool[Tensor, "B T"], State]:
        """The state holds the index of the exit that was chosen."""
        if visit.index == 0:
            state = {"chosen": self._log_prob(visit.hidden).argmax(0)}
        return state["chosen"] <= visit.index, state

    def losses(self, lesson: Lesson) -> dict[str, Float[Tensor, ""]]:
        features = lesson.hidden[0].detach() if self.options.detach_features else lesson.hidden[0]
        return {"exit": summed_cross_entropy(self._log_prob(features), token_targets(lesson, self.options))}

    def _log_prob(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "E B T"]:
        return at_least_float32(self.classifier(hidden)).log_softmax(-1).movedim(-1, 0)
