"""An encoder and one prediction per sequence: classes, several labels, or numbers."""

from typing import Any

from torch import nn
from torch.nn import functional as F
from transformers.utils import can_return_tuple

from depthwise.depth import Plan
from depthwise.errors import ConfigError, InputError, Problem
from depthwise.losses import IGNORED, ExitStatistics, class_exits, classification_loss, number_exits
from depthwise.models.adaptive import precise
from depthwise.models.backbone import Encoded, EncoderHead, summary_width
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.exits import HasExits, build_trained_policy, num_correct, separate_exits
from depthwise.models.objective import ExitObjective
from depthwise.models.outputs import DepthwiseOutput
from depthwise.shapes import Bool, Float, Int, Tensor


class DepthwiseForSequenceClassification(HasExits, EncoderHead):
    """logits = W v + b, where v sums up the sequence.

    Pooling ``max_mean``: v = ReLU([max_t h_t; mean_t h_t]) over real tokens, W of width 2 D (Liu et al. 2021, eq. 5);
    ``first``: v is the state of the first real token; ``first_tanh``: v = tanh(W' h + b') of that state, by the
    encoder's pooler.
    """

    leaves_by_rows = True

    def __init__(self, config: DepthwiseConfig) -> None:
        super().__init__(config, pools=True)
        assert config.num_labels is not None
        self.classifier = nn.Linear(summary_width(config), config.num_labels)
        depths, width = separate_exits(config.options), summary_width(config)
        self.exit_heads = nn.ModuleDict({str(depth): nn.Linear(width, config.num_labels) for depth in depths})
        asks_tokens = bool((config.policy or {}).get("each_token"))
        self.trained_policy = build_trained_policy(config.options, config.width if asks_tokens else width)
        if config.num_labels == 1:
            _check_policy_of_numbers(config.policy or {})
        self.post_init()

    def last_head(self) -> nn.Module:
        return self.classifier

    def summary_of(self, states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B 1 _e"]:
        return self.pooled(states, valid).unsqueeze(1)

    def scores_at(
        self, depth: int, states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None
    ) -> Float[Tensor, "B 1 labels"]:
        """Log-probabilities of the classes, or the number itself where one is predicted."""
        scores = precise(self.head_at(depth)(self.summary_of(states, valid)))
        return scores if self.config.num_labels == 1 else scores.log_softmax(-1)

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        plan: Plan | None = None,
        output_hidden_states: bool | None = None,
        token_type_ids: Int[Tensor, "B T"] | None = None,
        objective: ExitObjective | None = None,
        depths: Int[Tensor, "B T"] | None = None,
    ) -> DepthwiseOutput:
        """One row of scores per sequence. The loss follows ``config.problem_type`` or, without it, the labels.

        ``depths`` says how many blocks each token runs, as a plan does; without either all blocks run.
        """
        if objective is not None:
            encoded = self.encode_exits(objective, input_ids, attention_mask, token_type_ids)
            return self._taught(encoded, objective.repeated(labels), num_items_in_batch, objective)
        plan = self.planned(plan, depths, input_ids, attention_mask)
        output = self.encode(input_ids, attention_mask, plan, output_hidden_states, token_type_ids, self.leaving())
        summary = self.summary(output, input_ids, attention_mask)
        assert output.depths is not None
        seen = F.dropout(summary, self.config.classifier_dropout, self.training)
        logits, loss = self.scores_each(seen, output.depths.amax(1)), None
        if labels is not None:
            problem = self._problem(labels)
            loss = classification_loss(logits, labels, problem, num_items_in_batch)
        return output.replaced(loss=loss, logits=logits)

    def _taught(
        self, encoded: Encoded, labels: Tensor | None, num_items: Tensor | int | None, objective: ExitObjective
    ) -> DepthwiseOutput:
        output, states, chosen, valid = encoded
        if labels is None:
            raise InputError("exits learn from labels; give labels beside the objective")
        problem, dropout = self._problem(labels), self.config.classifier_dropout
        summaries = tuple(self.summary_of(state, valid) for state in states)
        scores = [
            head(F.dropout(summary, dropout, self.training))
            for head, summary in zip(self.heads_of_exits(), summaries, strict=True)
        ]
        items, targets = objective.items(num_items), objective.targets
        if problem == "single_label_classification":
            one = labels.view(-1, 1)
            found = class_exits(scores, one, objective.weights, items, chosen=chosen, targets=targets)
            is_labelled = one != IGNORED
        else:
            rows = [score.squeeze(1) for score in scores]
            found = number_exits(rows, labels, problem, objective.weights, items, chosen=chosen, targets=targets)
            is_labelled = ~labels.to(rows[0]).view_as(rows[0]).isnan().all(-1, keepdim=True)
        if self.learns_policy and problem == "multi_label_classification":
            raise InputError("a policy learns from one label of each sequence, not from several; train exits alone")
        assert found.statistics is not None
        lesson, policy = None, self.trained_policy
        if policy is not None and policy.each_token:
            real = is_labelled.expand(states[0].shape[:2]) if valid is None else valid & is_labelled
            of_tokens = ExitStatistics(*(values.expand(-1, *real.shape) for values in found.statistics))
            lesson = self.lesson_of(states, found._replace(statistics=of_tokens), real)
        elif policy is not None:
            lesson = self.lesson_of(summaries, found, is_labelled)
        taught = self.taught(output, found, objective, num_items, lesson, num_labels=is_labelled.sum())
        return taught.replaced(exit_correct=num_correct(found.statistics.correct, chosen))

    def _problem(self, labels: Tensor) -> str:
        return self.config.problem_type or _problem(self.config.num_labels, labels)


def _check_policy_of_numbers(policy: dict[str, Any]) -> None:
    """Refuse policies that learn whether a first guess is right, of which an estimate has none."""
    remedy = None
    if policy.get("kind") == "learned_confidence":
        remedy = "choose another kind of policy"
    elif policy.get("oracle") == "correctness" and policy.get("objective") != "expected_loss":
        remedy = "choose the oracle likelihood"
    if remedy is not None:
        message = f"an estimated number is never just right; {remedy}"
        raise ConfigError("DepthwiseForSequenceClassification", [Problem("policy", message)])


def _problem(num_labels: int | None, labels: Tensor) -> str:
    if num_labels == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
