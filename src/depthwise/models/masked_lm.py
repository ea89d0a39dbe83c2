"""An encoder and a head over its vocabulary: filling masks."""

from transformers.utils import can_return_tuple

from depthwise.depth import Plan
from depthwise.losses import token_cross_entropy
from depthwise.models.backbone import EncoderHead
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.language_head import HasLanguageHead, build_head, tied_weights
from depthwise.models.outputs import DepthwiseOutput
from depthwise.shapes import Int, Tensor


class DepthwiseForMaskedLM(HasLanguageHead, EncoderHead):
    """p(token | its surroundings), with the loss at the masked positions."""

    def __init__(self, config: DepthwiseConfig) -> None:
        super().__init__(config)
        self.head = build_head(config.options)
        self._tied_weights_keys = tied_weights(config.options, "head", "encoder")
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        plan: Plan | None = None,
        output_hidden_states: bool | None = None,
        token_type_ids: Int[Tensor, "B T"] | None = None,
    ) -> DepthwiseOutput:
        """Scores of the vocabulary at every position; ``labels`` are ``-100`` where nothing was masked."""
        output = self.encode(input_ids, attention_mask, plan, output_hidden_states, token_type_ids)
        logits = self.head(output.last_hidden_state)
        loss = None if labels is None else token_cross_entropy(logits, labels, num_items_in_batch)
        return output.replaced(loss=loss, logits=logits)
