"""An encoder and one prediction per sequence: classes, several labels, or numbers."""

import torch
from torch import nn
from transformers.utils import can_return_tuple

from depthwise.depth import Plan
from depthwise.losses import classification_loss
from depthwise.models.backbone import EncoderHead
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.inputs import valid_tokens
from depthwise.models.outputs import DepthwiseOutput
from depthwise.shapes import Bool, Float, Int, Tensor


class DepthwiseForSequenceClassification(EncoderHead):
    """logits = W v + b, where v sums up the sequence.

    Pooling ``max_mean``: v = ReLU([max_t h_t; mean_t h_t]) over real tokens, W of width 2 D (Liu et al. 2021, eq. 5);
    ``first``: v is the state of the first real token.
    """

    def __init__(self, config: DepthwiseConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        self.pool = max_and_mean if config.pooling == "max_mean" else first_token
        self.classifier = nn.Linear(config.width * (2 if config.pooling == "max_mean" else 1), config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        plan: Plan | None = None,
        output_hidden_states: bool | None = None,
    ) -> DepthwiseOutput:
        """One row of scores per sequence. The loss follows ``config.problem_type`` or, without it, the labels."""
        output = self.encode(input_ids, attention_mask, plan, output_hidden_states)
        assert input_ids is not None
        assert output.last_hidden_state is not None
        valid = valid_tokens(attention_mask, input_ids, "attention_mask", self.config.pad_token_id)
        logits, loss = self.classifier(self.pool(output.last_hidden_state, valid)), None
        if labels is not None:
            problem = self.config.problem_type or _problem(self.config.num_labels, labels)
            loss = classification_loss(logits, labels, problem, num_items_in_batch)
        return output.replaced(loss=loss, logits=logits)


def max_and_mean(hidden: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B _e"]:
    """ReLU of the maximum and the mean over real tokens, side by side."""
    if valid is None:
        return torch.cat([hidden.amax(1), hidden.mean(1)], dim=-1).relu()
    padding = ~valid.unsqueeze(-1)
    highest = hidden.masked_fill(padding, torch.finfo(hidden.dtype).min).amax(1)
    mean = hidden.masked_fill(padding, 0).sum(1) / valid.sum(1, keepdim=True).clamp(min=1)
    return torch.cat([highest, mean], dim=-1).relu()


def first_token(hidden: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B D"]:
    """The state of the first real token."""
    if valid is None:
        return hidden[:, 0]
    first = valid.int().argmax(1).view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
    return hidden.gather(1, first).squeeze(1)


def _problem(num_labels: int | None, labels: Tensor) -> str:
    if num_labels == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
