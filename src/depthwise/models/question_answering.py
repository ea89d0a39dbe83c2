"""An encoder and two pointers: where an answer starts and where it ends."""

import torch
from torch import nn
from transformers.utils import can_return_tuple

from depthwise.depth import Plan
from depthwise.errors import InputError
from depthwise.losses import IGNORED, token_cross_entropy
from depthwise.models.backbone import EncoderHead
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.inputs import can_look_into, valid_tokens
from depthwise.models.outputs import DepthwiseOutput
from depthwise.shapes import Int, Tensor


class DepthwiseForQuestionAnswering(EncoderHead):
    """[start_t, end_t] = W h_t + b, a softmax over real tokens for each of the two."""

    def __init__(self, config: DepthwiseConfig) -> None:
        super().__init__(config)
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
        token_type_ids: Int[Tensor, "B T"] | None = None,
    ) -> DepthwiseOutput:
        """Scores (B, T, 2) of start and end at every token, lowest on padding.

        ``labels`` hold start and end of each row, ``-100`` where an answer lies outside; ``start_positions`` and
        ``end_positions`` are the same in two tensors.
        """
        output = self.encode(input_ids, attention_mask, plan, output_hidden_states, token_type_ids)
        assert input_ids is not None
        logits = self.pointers(output.last_hidden_state)
        valid = valid_tokens(attention_mask, input_ids, "attention_mask", self.config.pad_token_id)
        if valid is not None:
            logits = logits.masked_fill(~valid.unsqueeze(-1), torch.finfo(logits.dtype).min)
        labels, loss = _labels(labels, start_positions, end_positions), None
        if labels is not None:
            _check_labels(labels, valid, logits.shape[1])
            loss = token_cross_entropy(logits.transpose(1, 2), labels, num_items_in_batch)
        return output.replaced(loss=loss, logits=logits, start_logits=logits[..., 0], end_logits=logits[..., 1])


def _labels(labels: Tensor | None, starts: Tensor | None, ends: Tensor | None) -> Tensor | None:
    if (starts is None) != (ends is None):
        raise InputError("start_positions and end_positions go together; give both or labels with two columns")
    if labels is None and starts is not None and ends is not None:
        return torch.stack([starts, ends], dim=1)
    return labels


def _check_labels(labels: Tensor, valid: Tensor | None, length: int) -> None:
    """Refuse answers on padding or outside, where no score can be right; looks into tensors on the CPU only."""
    if not all(can_look_into(tensor) for tensor in (labels, valid) if tensor is not None):
        return
    outside = (labels >= length) | ((labels < 0) & (labels != IGNORED))
    if valid is not None:
        outside |= ~valid.gather(1, labels.clamp(0, length - 1)) & (labels != IGNORED)
    if bool(outside.any()):
        row = int(outside.any(1).nonzero()[0])
        raise InputError(
            f"labels row {row} points at {labels[row].tolist()}, which is not among its real tokens; "
            f"use {IGNORED} where an answer lies outside"
        )
