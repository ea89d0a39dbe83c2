"""An encoder and two pointers: where an answer starts and where it ends."""

import torch
from torch import nn
from transformers.utils import can_return_tuple

from depthwise.depth import Plan
from depthwise.errors import InputError
from depthwise.losses import token_cross_entropy
from depthwise.models.backbone import DepthwiseModel
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.inputs import valid_tokens
from depthwise.models.outputs import DepthwiseOutput
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.shapes import Int, Tensor


class DepthwiseForQuestionAnswering(DepthwisePreTrainedModel):
    """[start_t, end_t] = W h_t + b, a softmax over real tokens for each of the two."""

    needs = ("encoder",)

    def __init__(self, config: DepthwiseConfig) -> None:
        super().__init__(config)
        self.model = DepthwiseModel(config)
        self.pointers = nn.Linear(config.width, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        labels: Int[Tensor, "B 2"] | None = None,
        start_positions: Int[Tensor, "B"] | None = None,
        end_positions: Int[Tensor, "B"] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        plan: Plan | None = None,
        output_hidden_states: bool | None = None,
    ) -> DepthwiseOutput:
        """Scores (B, T, 2) of start and end at every token, lowest on padding.

        ``labels`` hold start and end of each row, ``-100`` where an answer lies outside; ``start_positions`` and
        ``end_positions`` are the same in two tensors.
        """
        output = self.model(input_ids, attention_mask, plan=plan, output_hidden_states=output_hidden_states)
        assert input_ids is not None
        logits = self.pointers(output.last_hidden_state)
        valid = valid_tokens(attention_mask, input_ids, "attention_mask", self.config.pad_token_id)
        if valid is not None:
            logits = logits.masked_fill(~valid.unsqueeze(-1), torch.finfo(logits.dtype).min)
        output.logits, output.start_logits, output.end_logits = logits, logits[..., 0], logits[..., 1]
        labels = _labels(labels, start_positions, end_positions)
        if labels is not None:
            output.loss = token_cross_entropy(logits.transpose(1, 2), labels, num_items_in_batch)
        return output


def _labels(labels: Tensor | None, starts: Tensor | None, ends: Tensor | None) -> Tensor | None:
    if (starts is None) != (ends is None):
        raise InputError("start_positions and end_positions go together; give both or labels with two columns")
    if labels is None and starts is not None and ends is not None:
        return torch.stack([starts, ends], dim=1)
    return labels
