"""What policies are asked at the exits of recorded decoding."""

from collections.abc import Callable
from itertools import count

from depthwise.depth import (
    ConfidenceThreshold,
    Context,
    LearnedConfidence,
    Patience,
    PoissonBinomial,
    Policy,
    TokenExit,
    Visit,
)
from depthwise.engine.linear_maps import Weights
from depthwise.engine.static_layout import Layout
from depthwise.engine.static_tables import Chosen
from depthwise.models.adaptive import precise
from depthwise.shapes import Float, Tensor

RECORDED = (ConfidenceThreshold, LearnedConfidence, Patience, PoissonBinomial, TokenExit)
"""Policies that decide on a device by what recorded tables hold. Others are asked by Python."""


class Asked:
    """A policy as it was when it was first asked; what is recorded of it holds as long as it stays so."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self._options, self._weights = policy, _options(policy), Weights(policy)

    @property
    def can_be_recorded(self) -> bool:
        """Also lots are drawn again and again, as torch sees to it, but others than those of steps without graphs."""
        return type(self.policy) in RECORDED

    def is_current(self, policy: Policy) -> bool:
        is_same = policy is self.policy and _options(policy) == self._options
        return is_same and self._weights.are_as_they_were()


def _options(policy: Policy) -> str:
    return repr(getattr(policy, "options", None))


_numbers = count()


class Exits:
    """What a policy says of rows at the exits of one layout, and what it remembers of them from exit to exit.

    ``key`` is its own: work that was recorded for others is not done for it. ``scored`` has the exits at which the
    policy looks at scores: those who leave there have theirs in the layout already.
    """

    def __init__(self, layout: Layout, policy: Policy) -> None:
        self.layout, self.policy, self.depths = layout, policy, layout.prepared.model.exit_depths
        self.key = next(_numbers)
        self.scored: set[int] = set()
        self._tables: dict[str, Tensor] = {}
        self._remembered: dict[int, tuple[str, ...]] = {}

    def ask(self, depth: int, chosen: Chosen, context: Context | None = None) -> None:
        """Which of the chosen rows leave at this depth: ``layout.leaves``, in their order."""
        layout, index = self.layout, self.depths.index(depth)
        below = None if index == 0 else self.depths[index - 1]
        hidden = layout.seen(chosen.of(layout.x), depth)
        visit = Visit(
            depth=depth,
            hidden=hidden.unsqueeze(1),
            before=None if below is None else chosen.of(layout.before).unsqueeze(1),
            context=self._context(chosen) if context is None else context,
            scoring=self._scoring(depth, hidden, chosen),
        )
        names = () if below is None else self._remembered[below]
        leaves, remembered = self.policy.leaving(visit, {name: chosen.of(self._tables[name]) for name in names})
        layout.leaves[: chosen.count] = leaves.expand(chosen.count, 1).squeeze(1)
        chosen.put(layout.before, hidden)
        self._remembered[depth] = tuple(remembered)
        for name, value in remembered.items():
            chosen.put(self._table(name, value), value)

    def _context(self, chosen: Chosen) -> Context:
        steps = chosen.of(self.layout.clock.steps).unsqueeze(1)
        return Context(shape=(chosen.count, 1), exits=self.depths, steps=steps)

    def _scoring(self, depth: int, hidden: Tensor, chosen: Chosen) -> Callable[[], Float[Tensor, "R 1 V"]]:
        """Log-probabilities for the policy; those who leave then have their scores already."""

        def score() -> Tensor:
            prepared = self.layout.prepared
            logits = prepared.head_at(depth)(hidden)
            chosen.put(self.layout.logits, logits)
            self.scored.add(depth)
            return (logits if prepared.scores_are_normalized else precise(logits).log_softmax(-1)).unsqueeze(1)

        return score

    def _table(self, name: str, value: Tensor) -> Tensor:
        """Where something is remembered of every row; made when it first comes."""
        shape, known = (self.layout.size.num_rows + 1, *value.shape[1:]), self._tables.get(name)
        if known is None or known.shape != shape or known.dtype != value.dtype:
            self._tables[name] = value.new_zeros(shape)
        return self._tables[name]
