"""An encoder and a head over its vocabulary: filling masks; and, on request, one for the order of two segments."""

from torch import nn
from torch.nn import functional as F
from transformers.utils import can_return_tuple

from depthwise.depth import Plan
from depthwise.errors import ConfigError, InputError, Problem
from depthwise.losses import IGNORED, check_labels, exit_cross_entropy, summed_over_items, token_cross_entropy
from depthwise.models.adaptive import precise
from depthwise.models.backbone import Encoded, EncoderHead, summary_width
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.exits import build_trained_policy, num_correct
from depthwise.models.language_head import HasLanguageHead, build_exit_heads, build_head, tied_weights
from depthwise.models.objective import ExitObjective
from depthwise.models.outputs import DepthwiseOutput
from depthwise.shapes import Float, Int, Tensor


class DepthwiseForMaskedLM(HasLanguageHead, EncoderHead):
    """p(token | its surroundings), with the loss at the masked positions.

    With ``config.sentence_order`` there is a second head on what sums up the sequence, p(segments are swapped), and the
    loss is the sum of both (Lan et al. 2020, section 3.1).

    With exits, a masked token is guessed after several blocks: with tied heads and an exit after every block this is
    the "anytime" masked model of Liu et al. (2021), section 3.2, from whose losses depths of words are found.
    """

    def __init__(self, config: DepthwiseConfig) -> None:
        super().__init__(config, pools=config.sentence_order)
        self.head = build_head(config.options)
        self.exit_heads, self.trained_policy = build_exit_heads(config.options), None
        _check_exits(config)
        self.sentence_order = nn.Linear(summary_width(config), 2) if config.sentence_order else None
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
        label_places: Int[Tensor, "M"] | None = None,
        sentence_order_label: Int[Tensor, "B"] | None = None,
        objective: ExitObjective | None = None,
    ) -> DepthwiseOutput:
        """Scores of the vocabulary at every position; ``labels`` are ``-100`` where nothing was masked.

        ``label_places``, counted through rows and steps, spares the other positions the vocabulary: ``logits`` are then
        ``(M, V)``. ``sentence_order_label`` is 0 for segments in order and 1 for swapped ones. With an ``objective``
        the loss is that of all exits, and nothing else is computed.
        """
        if objective is not None:
            encoded = self.encode_exits(objective, input_ids, attention_mask, token_type_ids)
            return self._taught(encoded, labels, label_places, num_items_in_batch, objective)
        output = self.encode(input_ids, attention_mask, plan, output_hidden_states, token_type_ids, self.leaving())
        hidden, depths, wanted = output.last_hidden_state, output.depths, labels
        assert hidden is not None
        assert depths is not None
        if label_places is not None:
            hidden, depths = _at(label_places, hidden), depths.flatten()[label_places]
            wanted = None if labels is None else labels.flatten()[label_places]
        logits = self.scores_each(hidden, depths)
        loss = None if wanted is None else token_cross_entropy(logits, wanted, num_items_in_batch)
        order: Tensor | None = None
        if self.sentence_order is not None:
            summary = self.summary(output, input_ids, attention_mask)
            order = self.sentence_order(F.dropout(summary, self.config.classifier_dropout, self.training))
        if sentence_order_label is not None:
            if order is None:
                raise InputError("this model has no head for sentence_order_label; set sentence_order, or leave it out")
            order_loss = sentence_order_loss(order, sentence_order_label, labels, num_items_in_batch)
            loss = order_loss if loss is None else loss + order_loss
        return output.replaced(loss=loss, logits=logits, sentence_order_logits=order)

    def _taught(
        self,
        encoded: Encoded,
        labels: Tensor | None,
        places: Int[Tensor, "M"] | None,
        num_items: Tensor | int | None,
        objective: ExitObjective,
    ) -> DepthwiseOutput:
        """Scores are those of masked tokens alone where it is known which they are, and nobody has copies."""
        output, states, chosen, _ = encoded
        if labels is None:
            raise InputError("exits learn from labels; give labels beside the objective")
        wanted = objective.repeated(labels)
        assert wanted is not None
        if places is not None and objective.num_copies == 1:
            states = tuple(_at(places, state).unsqueeze(0) for state in states)
            wanted = wanted.flatten()[places].unsqueeze(0)
            chosen = None if chosen is None else chosen.flatten()[places].unsqueeze(0)
        found = exit_cross_entropy(
            states,
            self.heads_of_exits(),
            wanted,
            objective.weights,
            objective.items(num_items),
            chosen=chosen,
            targets=objective.targets,
            statistics=not self.training,
        )
        taught = self.taught(output, found, objective, num_items)
        if found.statistics is None:
            return taught
        return taught.replaced(exit_correct=num_correct(found.statistics.correct, chosen))


def _at(places: Int[Tensor, "M"], states: Float[Tensor, "B T D"]) -> Float[Tensor, "M D"]:
    """The states at some places, none of which comes twice; unlike indexing, the way back need not sort them."""
    return states.flatten(0, 1).index_select(0, places)


def _check_exits(config: DepthwiseConfig) -> None:
    """Refuse what exits of this model cannot do."""
    problems = []
    if config.exits is not None and config.sentence_order:
        problems.append(Problem("exits", "fill masks and do not judge the order of segments; remove sentence_order"))
    if build_trained_policy(config.options, config.width) is not None:
        kind = (config.policy or {})["kind"]
        message = f"{kind} would have to be learned, and here only masked tokens have labels; use confidence or fixed"
        problems.append(Problem("policy", message))
    if problems:
        raise ConfigError("DepthwiseForMaskedLM", problems)


def sentence_order_loss(
    logits: Float[Tensor, "B 2"],
    order: Int[Tensor, "B"],
    labels: Int[Tensor, "B T"] | None,
    num_items: Tensor | int | None,
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the order, in which a row weighs as much as it has masked tokens.

    So both losses are sums over the same items, and it does not matter how an update is parted into batches.
    """
    check_labels(order, 2)
    nll = F.cross_entropy(precise(logits), order.to(logits.device), ignore_index=IGNORED, reduction="none")
    if labels is None:
        return summed_over_items(nll.sum(), num_items, (order != IGNORED).sum())
    weights = (labels != IGNORED).sum(1).to(nll.device)
    return summed_over_items((nll * weights).sum(), num_items, weights.sum())
