"""An encoder and one prediction per token: tagging."""

from torch import nn
from torch.nn import functional as F
from transformers.utils import can_return_tuple

from depthwise.depth import Plan
from depthwise.errors import InputError
from depthwise.losses import IGNORED, class_exits, token_cross_entropy
from depthwise.models.adaptive import precise
from depthwise.models.backbone import Encoded, EncoderHead
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.exits import HasExits, build_trained_policy, num_correct, separate_exits
from depthwise.models.objective import ExitObjective
from depthwise.models.outputs import DepthwiseOutput
from depthwise.shapes import Bool, Float, Int, Tensor


class DepthwiseForTokenClassification(HasExits, EncoderHead):
    """logits_t = W h_t + b."""

    def __init__(self, config: DepthwiseConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        self.classifier = nn.Linear(config.width, config.num_labels)
        depths, num_labels = separate_exits(config.options), config.num_labels
        self.exit_heads = nn.ModuleDict({str(depth): nn.Linear(config.width, num_labels) for depth in depths})
        self.trained_policy = build_trained_policy(config.options, config.width)
        self.post_init()

    def last_head(self) -> nn.Module:
        return self.classifier

    def scores_at(
        self, depth: int, states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None
    ) -> Float[Tensor, "B T labels"]:
        return precise(self.head_at(depth)(states)).log_softmax(-1)

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
        objective: ExitObjective | None = None,
        depths: Int[Tensor, "B T"] | None = None,
    ) -> DepthwiseOutput:
        """One row of scores per token; ``labels`` are ``-100`` where a token carries none.

        ``depths`` says how many blocks each token runs, as a plan does; without either all blocks run.
        """
        if objective is not None:
            encoded = self.encode_exits(objective, input_ids, attention_mask, token_type_ids)
            return self._taught(encoded, objective.repeated(labels), num_items_in_batch, objective)
        plan = self.planned(plan, depths, input_ids, attention_mask)
        output = self.encode(input_ids, attention_mask, plan, output_hidden_states, token_type_ids, self.leaving())
        assert output.last_hidden_state is not None
        assert output.depths is not None
        seen = F.dropout(output.last_hidden_state, self.config.classifier_dropout, self.training)
        logits = self.scores_each(seen, output.depths)
        loss = None if labels is None else token_cross_entropy(logits, labels, num_items_in_batch)
        return output.replaced(loss=loss, logits=logits)

    def _taught(
        self, encoded: Encoded, labels: Tensor | None, num_items: Tensor | int | None, objective: ExitObjective
    ) -> DepthwiseOutput:
        output, states, chosen, _ = encoded
        if labels is None:
            raise InputError("exits learn from labels; give labels beside the objective")
        dropout, heads = self.config.classifier_dropout, self.heads_of_exits()
        scores = [head(F.dropout(state, dropout, self.training)) for head, state in zip(heads, states, strict=True)]
        items, targets = objective.items(num_items), objective.targets
        found = class_exits(scores, labels, objective.weights, items, chosen=chosen, targets=targets)
        assert found.statistics is not None
        lesson = self.lesson_of(states, found, labels != IGNORED) if self.learns_policy else None
        taught = self.taught(output, found, objective, num_items, lesson)
        return taught.replaced(exit_correct=num_correct(found.statistics.correct, chosen))
