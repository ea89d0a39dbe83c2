"""An encoder and two pointers: where an answer starts and where it ends."""

import torch
from torch import nn
from transformers.utils import can_return_tuple

from depthwise.depth import Plan
from depthwise.errors import ConfigError, InputError, Problem
from depthwise.losses import IGNORED, ExitStatistics, class_exits, token_cross_entropy
from depthwise.models.adaptive import precise
from depthwise.models.backbone import Encoded, EncoderHead
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.exits import HasExits, build_trained_policy, num_correct, separate_exits
from depthwise.models.inputs import can_look_into, valid_tokens
from depthwise.models.objective import ExitObjective
from depthwise.models.outputs import DepthwiseOutput
from depthwise.shapes import Bool, Float, Int, Tensor


class DepthwiseForQuestionAnswering(HasExits, EncoderHead):
    """[start_t, end_t] = W h_t + b, a softmax over real tokens for each of the two."""

    leaves_by_rows = True

    def __init__(self, config: DepthwiseConfig) -> None:
        super().__init__(config)
        self.pointers = nn.Linear(config.width, 2)
        depths = separate_exits(config.options)
        self.exit_heads = nn.ModuleDict({str(depth): nn.Linear(config.width, 2) for depth in depths})
        self.trained_policy = build_trained_policy(config.options, config.width)
        if self.trained_policy is not None and self.trained_policy.each_token:
            problem = Problem("policy.each_token", "is for text classification; remove it")
            raise ConfigError(type(self).__name__, [problem])
        self.post_init()

    def last_head(self) -> nn.Module:
        return self.pointers

    def scores_at(
        self, depth: int, states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None
    ) -> Float[Tensor, "B 1 _pairs"]:
        """Log-probabilities of all T * T pairs of start and end, the two being drawn by themselves."""
        starts, ends = precise(_among_real(self.head_at(depth)(states), valid)).log_softmax(1).unbind(-1)
        return (starts.unsqueeze(2) + ends.unsqueeze(1)).flatten(1).unsqueeze(1)

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
        objective: ExitObjective | None = None,
        depths: Int[Tensor, "B T"] | None = None,
    ) -> DepthwiseOutput:
        """Scores (B, T, 2) of start and end at every token, lowest on padding.

        ``labels`` hold start and end of each row, ``-100`` where an answer lies outside; ``start_positions`` and
        ``end_positions`` are the same in two tensors. ``depths`` says how many blocks each token runs, as a plan does;
        without either all blocks run.
        """
        if objective is not None:
            encoded = self.encode_exits(objective, input_ids, attention_mask, token_type_ids)
            labels = objective.repeated(_labels(labels, start_positions, end_positions))
            return self._taught(encoded, labels, num_items_in_batch, objective)
        plan = self.planned(plan, depths, input_ids, attention_mask)
        output = self.encode(input_ids, attention_mask, plan, output_hidden_states, token_type_ids, self.leaving())
        assert input_ids is not None
        assert output.last_hidden_state is not None
        assert output.depths is not None
        valid = valid_tokens(attention_mask, input_ids, "attention_mask", self.config.pad_token_id)
        logits = _among_real(self.scores_each(output.last_hidden_state, output.depths), valid)
        labels, loss = _labels(labels, start_positions, end_positions), None
        if labels is not None:
            _check_labels(labels, valid, logits.shape[1])
            loss = token_cross_entropy(logits.transpose(1, 2), labels, num_items_in_batch)
        return output.replaced(loss=loss, logits=logits, start_logits=logits[..., 0], end_logits=logits[..., 1])

    def _taught(
        self, encoded: Encoded, labels: Tensor | None, num_items: Tensor | int | None, objective: ExitObjective
    ) -> DepthwiseOutput:
        """Start and end of a row are two items of the loss, and one label of the policy."""
        output, states, chosen, valid = encoded
        if labels is None:
            raise InputError("exits learn from labels; give labels beside the objective")
        _check_labels(labels, valid, states[0].shape[1])
        scores = [
            _among_real(head(state), valid).transpose(1, 2)
            for head, state in zip(self.heads_of_exits(), states, strict=True)
        ]
        chosen = None if chosen is None else chosen.expand_as(labels)
        items, targets = objective.items(num_items), objective.targets
        found = class_exits(scores, labels, objective.weights, items, chosen=chosen, targets=targets)
        assert found.statistics is not None
        lesson = None
        if self.learns_policy:
            summaries = tuple(self.summary_of(state, valid) for state in states)
            of_rows = found._replace(statistics=_of_rows(found.statistics, states[0].shape[1]))
            lesson = self.lesson_of(summaries, of_rows, (labels != IGNORED).any(1, keepdim=True))
        taught = self.taught(output, found, objective, num_items, lesson, items_of_label=2)
        both = found.statistics.correct.all(-1, keepdim=True)
        return taught.replaced(exit_correct=num_correct(both, None if chosen is None else chosen[:, :1]))


def _of_rows(statistics: ExitStatistics, length: int) -> ExitStatistics:
    """Both pointers of a row as one: their mean, and their pair, which is right if both are."""
    starts, ends = statistics.guesses.split(1, dim=-1)
    nll, correct = statistics.nll.mean(-1, keepdim=True), statistics.correct.all(-1, keepdim=True)
    return ExitStatistics(nll, starts * length + ends, correct)


def _among_real(scores: Float[Tensor, "B T 2"], valid: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T 2"]:
    """The scores with the lowest there is on padding."""
    return scores if valid is None else scores.masked_fill(~valid.unsqueeze(-1), torch.finfo(scores.dtype).min)


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
