"""A decoder alone and a head over its vocabulary: language modelling."""

from transformers.utils import can_return_tuple

from depthwise.depth import Plan
from depthwise.errors import InputError
from depthwise.losses import IGNORED, check_labels, summed_over_items, token_cross_entropy
from depthwise.memory import DecodeState
from depthwise.models.adaptive import AdaptiveHead
from depthwise.models.backbone import DepthwiseModel
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.exits import build_trained_policy
from depthwise.models.generation import DepthwiseGenerationMixin
from depthwise.models.language_head import HasLanguageHead, LanguageHead, build_exit_heads, build_head, tied_weights
from depthwise.models.objective import ExitObjective
from depthwise.models.outputs import DepthwiseOutput
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.shapes import Float, Int, Tensor


class DepthwiseForCausalLM(HasLanguageHead, DepthwisePreTrainedModel, DepthwiseGenerationMixin):
    """p(next token | those before it), with a plain or an adaptive softmax."""

    needs = ("decoder",)
    head: LanguageHead | AdaptiveHead

    def __init__(self, config: DepthwiseConfig) -> None:
        super().__init__(config)
        self.model = DepthwiseModel(config)
        self.head = build_head(config.options)
        self.exit_heads = build_exit_heads(config.options)
        self.trained_policy = build_trained_policy(config.options, config.width)
        self._tied_weights_keys = tied_weights(config.options, "head", "decoder")
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: DecodeState | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        use_cache: bool | None = None,
        plan: Plan | None = None,
        output_hidden_states: bool | None = None,
        objective: ExitObjective | None = None,
    ) -> DepthwiseOutput:
        """Scores of the next token at every step.

        ``labels`` are ``input_ids`` themselves, ``-100`` where there is no loss; they are moved inside. With an
        adaptive softmax and labels only the loss is computed: the scores of a large vocabulary would not fit. With an
        ``objective`` it is that of all exits, and again nothing else is computed.
        """
        if objective is not None:
            return self._taught(input_ids, attention_mask, labels, num_items_in_batch, objective)
        output = self.model(
            input_ids,
            attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            plan=plan,
            output_hidden_states=output_hidden_states,
            leaving=self.leaving(),
            return_dict=True,
        )
        hidden, logits, loss = output.last_hidden_state, None, None
        if labels is not None and isinstance(self.head, AdaptiveHead):
            loss = self._adaptive_loss(hidden[:, :-1], labels[:, 1:], num_items_in_batch)
        else:
            logits = self.scores_each(hidden, output.depths)
            if labels is not None:
                loss = token_cross_entropy(logits[:, :-1], labels[:, 1:], num_items_in_batch)
        return output.replaced(loss=loss, logits=logits)

    def _taught(
        self,
        ids: Tensor | None,
        mask: Tensor | None,
        labels: Tensor | None,
        num_items: Tensor | int | None,
        objective: ExitObjective,
    ) -> DepthwiseOutput:
        ids, mask, labels = map(objective.repeated, (ids, mask, labels))
        if ids is None or labels is None:
            raise InputError("exits learn from labels; give labels beside the objective")
        plan, chosen = objective.drawn(self.exit_depths, (len(ids), ids.shape[1]), ids.device, by_row=False)
        factors = objective.own_factors
        output = self.model(ids, mask, plan=plan, output_hidden_states=True, own_factors=factors, return_dict=True)
        decoder = self.model.decoder
        assert decoder is not None
        states = self.states_at_exits(decoder.stack, output, is_mixed=objective.is_mixed)
        before = tuple(state[:, :-1] for state in states)
        chosen = None if chosen is None else chosen[:, :-1]
        return self.taught_tokens(output, before, labels[:, 1:], num_items, objective, chosen)

    def _adaptive_loss(
        self, hidden: Float[Tensor, "B T D"], labels: Int[Tensor, "B T"], num_items: Tensor | int | None
    ) -> Float[Tensor, ""]:
        assert isinstance(self.head, AdaptiveHead)
        check_labels(labels, self.head.bounds[-1])
        counted = labels != IGNORED
        total = self.head.nll(hidden[counted], labels[counted]).sum()
        return summed_over_items(total, num_items, counted.sum())
