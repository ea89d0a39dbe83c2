"""One depth for every sequence, guessed from its source."""

from torch import nn

from depthwise.config.depth import SequenceExitConfig
from depthwise.depth.exit_targets import depth_of_exit, sequence_targets, summed_cross_entropy
from depthwise.depth.policy import Context, Lesson, Policy
from depthwise.errors import InputError
from depthwise.kernels.weights import at_least_float32
from depthwise.shapes import Bool, Float, Int, Tensor


class SequenceExit(Policy):
    """All tokens of a sequence leave at the exit that its source suggests.

        q(n | x) = softmax(W·s + b)        s: mean of the encoder's states over real tokens of the source
        depth = argmax_n q(n | x)          loss = −log q(n* | x),  n* = argmax_n Σ_t score[n, t] − λ·n

    Ours -> symbols: penalty -> λ; score is what ``oracle`` says.

    Decides: before the decoder runs, for whole sequences.
    Source: Elbayad et al. 2020, "Depth-Adaptive Transformer" (sequence-specific depth).
    Choose it: where depth should be known in advance, to put sequences of one depth into one batch. It cannot tell the
    easy tokens of a sequence from the hard ones; ``token`` and ``poisson_binomial`` can.
    Needs: a source, that is an encoder below the decoder; exits that were trained, and its classifier trained on them.
    """

    plans = True
    needs_training = True
    by_sequence = True

    def __init__(self, options: SequenceExitConfig, *, width: int, num_exits: int) -> None:
        super().__init__()
        self.options = options
        self.classifier = nn.Linear(width, num_exits)

    def plan(self, context: Context) -> Int[Tensor, "B T"]:
        chosen = self._log_prob(context).argmax(0)
        return depth_of_exit(chosen, context.exits).unsqueeze(1).expand(context.shape)

    def losses(self, lesson: Lesson) -> dict[str, Float[Tensor, ""]]:
        targets = sequence_targets(lesson, self.options)
        return {"exit": summed_cross_entropy(self._log_prob(lesson.context), targets)}

    def _log_prob(self, context: Context) -> Float[Tensor, "E B"]:
        if context.source is None:
            raise InputError("depth is guessed from the source, but there is none; choose another kind of policy")
        source = context.source.detach() if self.options.detach_features else context.source
        logits = self.classifier(_mean(source, context.source_valid))
        return at_least_float32(logits).log_softmax(-1).movedim(-1, 0)


def _mean(states: Float[Tensor, "B S D"], valid: Bool[Tensor, "B S"] | None) -> Float[Tensor, "B D"]:
    """Mean over the real tokens; 0 where there are none."""
    if valid is None:
        return states.mean(1)
    total = states.masked_fill(~valid.unsqueeze(-1), 0.0).sum(1)
    return total / valid.sum(1, keepdim=True).clamp(min=1)
