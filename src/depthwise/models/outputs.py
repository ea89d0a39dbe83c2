"""What models return."""

from dataclasses import dataclass, replace
from typing import Any

from transformers.utils import ModelOutput

from depthwise.memory import DecodeState
from depthwise.shapes import Float, Int, Tensor


@dataclass
class DepthwiseOutput(ModelOutput):
    """One output for all models; what a model does not produce is none.

    ``depths[b, t]`` counts the blocks that a token ran (0 for padding): of the decoder where there is one, and then
    ``encoder_depths`` of the encoder. ``hidden_by_depth[n]`` is the state after n blocks, index 0 the embedding; it is
    kept on request (``output_hidden_states=True``). ``start_logits`` and ``end_logits`` are the two columns of
    ``logits`` of question answering. ``pooler_output`` sums up a sequence by pooling ``first_tanh``;
    ``sentence_order_logits`` say whether its two segments are in order (0) or swapped (1).

    Where exits learn (``objective``) there are no logits. ``exit_nll`` then holds the sum of negative log-likelihoods
    at each exit over its ``exit_items``, ``exit_correct`` how many of them it has guessed right (small heads), and
    ``policy_loss`` the sum of what the policy minimises; none of these has a gradient.
    """

    loss: Float[Tensor, ""] | None = None
    logits: Float[Tensor, "..."] | None = None
    start_logits: Float[Tensor, "B T"] | None = None
    end_logits: Float[Tensor, "B T"] | None = None
    last_hidden_state: Float[Tensor, "B T D"] | None = None
    depths: Int[Tensor, "B T"] | None = None
    hidden_by_depth: tuple[Float[Tensor, "B T D"], ...] | None = None
    past_key_values: DecodeState | None = None
    encoder_last_hidden_state: Float[Tensor, "B S D"] | None = None
    encoder_depths: Int[Tensor, "B S"] | None = None
    pooler_output: Float[Tensor, "B D"] | None = None
    sentence_order_logits: Float[Tensor, "B 2"] | None = None
    exit_nll: Float[Tensor, "E"] | None = None
    exit_items: Int[Tensor, "E"] | None = None
    exit_correct: Int[Tensor, "E"] | None = None
    policy_loss: Float[Tensor, ""] | None = None

    def replaced(self, **changes: Any) -> "DepthwiseOutput":
        """This output with some fields set, in the order of the fields: as a tuple it starts with loss and logits."""
        return replace(self, **changes)

    @property
    def hidden_states(self) -> tuple[Float[Tensor, "B T D"], ...] | None:
        """``hidden_by_depth`` under the name that Transformers' ``generate`` asks for."""
        return self.hidden_by_depth

    @property
    def decoder_hidden_states(self) -> tuple[Float[Tensor, "B T D"], ...] | None:
        """The same, where there is an encoder too."""
        return self.hidden_by_depth
