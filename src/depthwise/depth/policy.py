"""What a policy is: something that decides how many blocks each token runs.

It answers one of two questions, with tensors and never with numbers of Python, so that nobody waits for the device:

    plan(context)            before the stack runs: the depth of every token
    leaving(visit, state)    at an exit: which tokens run no further

A policy decides for every token by itself: what it says of a row does not depend on the other rows of the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import nn

from depthwise.shapes import Bool, Float, Int, Tensor

State = dict[str, Tensor]
"""What a policy remembers from one exit to the next: tensors that begin with rows and steps (B, T, ...)."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What is known before a stack runs: T tokens of B rows, of which ``valid`` are no padding.

    ``exits`` are the depths at which tokens may leave, from low to high; the last is the number of layers. ``steps``
    says which token of its sequence each is, counted from 0. A decoder of two sides knows its ``source``. Where whole
    rows leave, T is 1 and ``lengths`` says how many tokens each has.
    """

    shape: tuple[int, int]
    exits: tuple[int, ...]
    steps: Int[Tensor, "B T"]
    valid: Bool[Tensor, "B T"] | None = None
    source: Float[Tensor, "B S D"] | None = None
    source_valid: Bool[Tensor, "B S"] | None = None
    lengths: Int[Tensor, "B"] | None = None

    def of_rows(self) -> "Context":
        """The same where whole rows leave, each as if it were one token."""
        num_rows, num_steps = self.shape
        lengths = self.steps.new_full((num_rows,), num_steps) if self.valid is None else self.valid.sum(1)
        steps = torch.zeros_like(self.steps[:, :1])
        return replace(self, shape=(num_rows, 1), steps=steps, valid=None, lengths=lengths)


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A stop at an exit after ``depth`` blocks, with the states as its head sees them.

    ``before`` are the states at the exit below, where there is one. ``log_prob`` is what the head of this exit says of
    its classes or of the vocabulary; it is computed when somebody first looks at it.
    """

    depth: int
    hidden: Float[Tensor, "B T D"]
    before: Float[Tensor, "B T D"] | None
    context: Context
    scoring: Callable[[], Float[Tensor, "B T V"]] = field(repr=False)

    @cached_property
    def log_prob(self) -> Float[Tensor, "B T V"]:
        return self.scoring()

    @property
    def index(self) -> int:
        """Which of the exits this is, from 0."""
        return self.context.exits.index(self.depth)


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a policy learns from: all E exits of tokens that ran the whole stack.

    ``hidden[e]`` are the states that the head of exit e sees, ``nll[e]`` is its negative log-likelihood of the label,
    ``correct[e]`` whether the label is its first guess, and ``agrees[e]`` whether its first guess is that of the last
    exit. ``valid`` are the tokens with a label.
    """

    context: Context
    hidden: tuple[Float[Tensor, "B T D"], ...]
    nll: Float[Tensor, "E B T"]
    correct: Bool[Tensor, "E B T"]
    agrees: Bool[Tensor, "E B T"]
    valid: Bool[Tensor, "B T"]


class Policy(nn.Module):
    """Decides how deep tokens run; those with parameters are trained. Subclasses answer one of the two questions."""

    plans: ClassVar[bool] = False
    """Whether depths are known before the stack runs (``plan``) or found on the way (``leaving``)."""
    needs_training: ClassVar[bool] = False
    """Whether it decides by parameters, which mean nothing before they are trained."""
    by_sequence: ClassVar[bool] = False
    """Whether its losses are sums over sequences and not over tokens."""

    @property
    def each_token(self) -> bool:
        """Whether it asks every token, also where there is one prediction for a whole row."""
        return False

    def plan(self, context: Context) -> Int[Tensor, "B T"]:
        """The depth of every token, one of the exits; what it says of padding does not matter."""
        raise TypeError(f"{type(self).__name__} plans nothing")

    def leaving(self, visit: Visit, state: State) -> tuple[Bool[Tensor, "B T"], State]:
        """Which tokens leave here. It is asked of all tokens at every exit but the last, where everybody leaves."""
        raise TypeError(f"{type(self).__name__} decides before the stack runs")

    def losses(self, lesson: Lesson) -> dict[str, Float[Tensor, ""]]:
        """Its terms of the training loss, each summed over tokens (or sequences); none where nothing is learned."""
        return {}
