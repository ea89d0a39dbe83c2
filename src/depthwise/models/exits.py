"""Heads of all exits, and the policy by which tokens leave there."""

from typing import Any

import torch
from torch import nn

from depthwise.config import ModelConfig, parse_policy
from depthwise.config.validation import UNPARSED
from depthwise.depth import Policy, build_policy
from depthwise.errors import InputError
from depthwise.models.masked import Leaving
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
        """By which tokens leave now."""
        return self._policy

    def use_policy(self, policy: Policy | None) -> None:
        """From now on, let tokens leave by this policy, or none before the end."""
        if policy is not None and self.config.exits is None:
            raise InputError("this model has no exits to leave at; train one with model.exits, or use the whole stack")
        object.__setattr__(self, "_policy", policy)  # not a part of this model: its weights are not saved with it

    def leaving(self) -> Leaving | None:
        """The policy with the heads it looks at; none in training, and where there is no policy."""
        if self._policy is None or self.training:
            return None
        exits, summary = self.config.options.exit_depths, self.summary_of if self.leaves_by_rows else None
        return Leaving(policy=self._policy, exits=exits, scores=self.scores_at, summary=summary)

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


def build_trained_policy(options: ModelConfig, width: int) -> Policy | None:
    """The policy of a model's options, if it decides by parameters; its states have this width."""
    if options.policy is None or options.policy["kind"] in UNPARSED:
        return None
    has_source = options.encoder is not None and options.decoder is not None
    parsed = parse_policy(options.policy)
    policy = build_policy(parsed, width=width, exits=options.exit_depths, has_source=has_source)
    return policy if policy.needs_training else None


def separate_exits(options: ModelConfig) -> tuple[int, ...]:
    """The depths of exits that have a head of their own."""
    return options.exit_depths[:-1] if options.exits is not None and options.exits.heads == "separate" else ()
