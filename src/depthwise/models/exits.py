"""Heads of all exits, what they learn together, and the policy by which tokens leave there."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import nn

from depthwise.config import ModelConfig, parse_policy
from depthwise.config.validation import UNPARSED
from depthwise.depth import Context, Lesson, Policy, StructureExit, StructurePredictor, build_policy
from depthwise.errors import InputError
from depthwise.losses import ExitLoss, summed_over_items
from depthwise.models.masked import Leaving
from depthwise.models.objective import ExitObjective
from depthwise.models.outputs import DepthwiseOutput
from depthwise.models.stack import Source, Stack
from depthwise.shapes import Bool, Float, Int, Tensor


class HasExits:
    """A model whose tokens may leave before the end of the stack.

    The head of the model is that of the last exit. With ``exits.heads`` tied it serves the others too, else those are
    in ``exit_heads``. A policy (``use_policy``) decides who leaves where; without one every token runs the whole stack.
    ``trained_policy`` is the one that learns with the model, where its options name one that has parameters.
    In training nobody leaves: all exits learn from tokens that run to the end, or from plans.
    """

    config: Any
    training: bool
    exit_heads: nn.ModuleDict
    trained_policy: Policy | None
    structure: StructurePredictor | None
    leaves_by_rows = False
    """Whether whole rows leave, since there is one prediction for each, or every token by itself."""
    _policy: Policy | None = None

    def last_head(self) -> nn.Module:
        """What maps states to scores at the end."""
        raise TypeError(f"{type(self).__name__} says nothing of its head")

    def scores_at(
        self, depth: int, states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None
    ) -> Float[Tensor, "B P V"]:
        """Log-probabilities by the head at this depth, for policies: of each token, or of each row (P = 1)."""
        raise TypeError(f"{type(self).__name__} gives its policies no scores")

    def summary_of(self, states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B 1 _e"]:
        """One state for each row, where whole rows leave: the mean of those of its tokens."""
        if valid is None:
            return states.mean(1, keepdim=True)
        counted = valid.unsqueeze(-1)
        return (states * counted).sum(1, keepdim=True) / counted.sum(1, keepdim=True).clamp(min=1)

    @property
    def policy(self) -> Policy | None:
        """By which tokens leave the last stack now."""
        structure = self.structure if self.config.decoder is None else None
        return self._policy if structure is None else structure.policy

    def use_policy(self, policy: Policy | None) -> None:
        """From now on, let tokens leave by this policy, or none before the end.

        Without exits, policies of a model with a structure are about its encoder, whatever is above it. With exits in
        its decoder they are about these, but for the policy ``structure``.
        """
        structure = self.structure
        if structure is not None and (self.config.exits is None or isinstance(policy, StructureExit)):
            structure.use(policy)
            return
        if isinstance(policy, StructureExit):
            raise InputError("this model does not say how many layers it needs; train one with model.structure")
        if policy is not None and self.config.exits is None:
            raise InputError("this model has no exits to leave at; train one with model.exits, or use the whole stack")
        object.__setattr__(self, "_policy", policy)  # not a part of this model: its weights are not saved with it

    def _apply(self, change: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Where this model goes, to a device or a precision, the policy in use goes too, though no part of it."""
        moved = super()._apply(change, recurse)  # type: ignore[misc]
        if isinstance(self._policy, nn.Module) and self._policy is not self.trained_policy:
            self._policy._apply(change)
        return moved

    def leaving(self) -> Leaving | None:
        """The policy with the heads it looks at; none in training, and where there is no policy."""
        if self._policy is None or self.training:
            return None
        summary = self.summary_of if self.leaves_by_rows and not self._policy.each_token else None
        return Leaving(policy=self._policy, exits=self.exit_depths, scores=self.scores_at, summary=summary)

    @cached_property
    def exit_depths(self) -> tuple[int, ...]:
        """The depths of all exits, from low to high; the last is the number of layers."""
        depths: tuple[int, ...] = self.config.options.exit_depths
        return depths

    def head_at(self, depth: int) -> nn.Module:
        """The head of those who leave at this depth: its own, or that of the end."""
        return self.exit_heads[str(depth)] if str(depth) in self.exit_heads else self.last_head()

    def scores_each(self, hidden: Float[Tensor, "*rows D"], depths: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows V"]:
        """Scores by the head where each one left. Other heads than the last run only where somebody did."""
        scores: Tensor = self.last_head()(hidden)
        for depth, head in self.exit_heads.items():
            here = depths == int(depth)
            if bool(here.any()):
                scores = torch.where(here.unsqueeze(-1), head(hidden), scores)
        return scores

    # Learning

    def heads_of_exits(self) -> list[nn.Module]:
        return [self.head_at(depth) for depth in self.exit_depths]

    def states_at_exits(
        self, stack: Stack, output: DepthwiseOutput, *, is_mixed: bool
    ) -> tuple[Float[Tensor, "B T D"], ...]:
        """States as the heads of exits see them: of tokens that came there, or where each one left."""
        assert output.hidden_by_depth is not None
        hidden = output.hidden_by_depth
        if is_mixed and not stack.exit_norms:
            return (stack.normalized(hidden[-1]),) * len(self.exit_depths)
        return tuple(stack.normalized(hidden[-1 if is_mixed else depth], depth) for depth in self.exit_depths)

    @property
    def learns_policy(self) -> bool:
        return self.trained_policy is not None

    def taught(
        self,
        output: DepthwiseOutput,
        found: ExitLoss,
        objective: ExitObjective,
        num_items: Tensor | int | None,
        lesson: Lesson | None = None,
        *,
        items_of_label: int = 1,
        num_labels: Int[Tensor, ""] | None = None,
    ) -> DepthwiseOutput:
        """The output with the loss of all exits and, where there is a lesson for it, of the policy.

        A label of the lesson stands for some of the items that the loss is divided by. Where several tokens have the
        same label, ``num_labels`` says how many there really are, and each has the mean of its tokens.
        """
        loss, policy_loss = found.loss, None
        if lesson is not None and self.trained_policy is not None and objective.policy_weight:
            terms = sum(self.trained_policy.losses(lesson).values(), loss.new_zeros(()))
            num_taught = lesson.valid.sum()
            if num_labels is None:
                num_labels = num_taught
            else:
                terms = terms * num_labels / num_taught.clamp(min=1)
            if self.trained_policy.by_sequence:
                terms = terms * num_labels / lesson.valid.any(1).sum().clamp(min=1)
            items = objective.items(num_items)
            num_here = num_labels * items_of_label
            loss = loss + objective.policy_weight * summed_over_items(terms * items_of_label, items, num_here)
            policy_loss = terms.detach()
        return output.replaced(
            loss=loss,
            logits=None,
            hidden_by_depth=None,
            exit_nll=found.nll_sums,
            exit_items=found.num_tokens,
            policy_loss=policy_loss,
        )

    def lesson_of(
        self,
        states: tuple[Float[Tensor, "B T D"], ...],
        found: ExitLoss,
        valid: Bool[Tensor, "B T"],
        source: Source | None = None,
    ) -> Lesson:
        """What the policy learns from, of tokens that ran the whole stack."""
        assert found.statistics is not None
        statistics, (num_rows, num_steps) = found.statistics, valid.shape
        context = Context(
            shape=(num_rows, num_steps),
            exits=self.exit_depths,
            steps=torch.arange(num_steps, device=valid.device).expand(num_rows, -1),
            valid=valid,
            source=None if source is None else source.states,
            source_valid=None if source is None else source.valid,
        )
        return Lesson(
            context=context,
            hidden=states,
            nll=statistics.nll,
            correct=statistics.correct,
            agrees=statistics.guesses == statistics.guesses[-1],
            valid=valid,
        )


def num_correct(correct: Bool[Tensor, "E B P"], chosen: Int[Tensor, "B P"] | None) -> Int[Tensor, "E"]:
    """How many guesses of each exit are right, among those who came there."""
    if chosen is not None:
        numbers = torch.arange(len(correct), device=correct.device).view(-1, 1, 1)
        correct = correct & (chosen.to(correct.device) == numbers)
    return correct.sum((1, 2))


def build_trained_policy(options: ModelConfig, width: int) -> Policy | None:
    """The policy of a model's options, if it decides by parameters; its states have this width."""
    if options.policy is None or options.policy["kind"] in UNPARSED:
        return None
    has_source = options.encoder is not None and options.decoder is not None
    parsed = parse_policy(options.policy)
    policy = build_policy(parsed, width=width, exits=options.stopping_depths, has_source=has_source)
    return policy if policy.needs_training else None


def separate_exits(options: ModelConfig) -> tuple[int, ...]:
    """The depths of exits that have a head of their own."""
    return options.exit_depths[:-1] if options.exits is not None and options.exits.heads == "separate" else ()
