"""Cross-entropy of all exits of a stack, without ever holding exits × tokens × vocabulary.

    aligned:    loss = Σ_e ω_e·CE_e / Σ_e ω_e           every token counts at every exit
    mixed:      loss = Σ_t CE_{chosen(t)}(t)            every token counts at one exit

(Elbayad et al. 2020). Scores of the vocabulary exist for one exit and one chunk of tokens at a time. The gradients that
follow from them are computed right away (``early_gradients``): so that nothing is computed twice, heads may have
dropout, and all of it can be recorded in a CUDA graph.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from depthwise.errors import InputError
from depthwise.kernels.weights import at_least_float32
from depthwise.losses.cross_entropy import IGNORED, check_labels, summed_over_items
from depthwise.losses.distillation import DIVERGENCES, TeacherScores
from depthwise.losses.early_gradients import EarlyGradients
from depthwise.losses.label_smoothing import label_smoothed_cross_entropy
from depthwise.shapes import Bool, Float, Int, Tensor

SCORES_AT_ONCE = 1 << 26
"""Tokens of a chunk times types of the vocabulary, unless a caller says how many tokens."""


@dataclass(frozen=True, kw_only=True)
class ExitTargets:
    """What exits learn from: labels, smoothed as ``label_smoothed_cross_entropy`` does it, or the last exit."""

    smoothing: float = 0.0
    over_others: bool = False
    from_last: float = 0.0
    """The share of what exits below the last learn from what the last one says, by one of ``DIVERGENCES``; the rest is
    from labels (1 is FastBERT's self-distillation). The last one learns from labels, if it has any weight. Labels
    still say which tokens count."""
    divergence: str = "student"
    teacher: TeacherScores | None = None
    """What another model says of the same items: all exits learn from it, with its own weight beside all the rest."""


LABELS = ExitTargets()


class ExitStatistics(NamedTuple):
    """Of every exit and token, without gradients: what oracles and policies learn from.

    ``nll`` is 0 where there is no label. ``guesses`` are the most probable types; they are ``correct`` where they are
    the label.
    """

    nll: Float[Tensor, "E B T"]
    guesses: Int[Tensor, "E B T"]
    correct: Bool[Tensor, "E B T"]


class ExitLoss(NamedTuple):
    """``loss`` is what training minimises. ``nll_sums`` are sums over ``num_tokens`` labels at each exit.

    An exit that was skipped has no tokens; in mixed training an exit has those that chose it.
    """

    loss: Float[Tensor, ""]
    nll_sums: Float[Tensor, "E"]
    num_tokens: Int[Tensor, "E"]
    statistics: ExitStatistics | None


def exit_cross_entropy(
    states: tuple[Float[Tensor, "B T D"], ...],
    heads: Sequence[nn.Module],
    labels: Int[Tensor, "B T"],
    weights: Sequence[float] | Float[Tensor, "E"] | None = None,
    num_items: Tensor | int | None = None,
    *,
    chosen: Int[Tensor, "B T"] | None = None,
    targets: ExitTargets = LABELS,
    in_bands: bool = False,
    statistics: bool = False,
    tokens_at_once: int | None = None,
) -> ExitLoss:
    """The loss of E exits from the ``states`` that their ``heads`` see, divided as ``summed_over_items`` says.

    ``weights`` have any scale. Exits that weigh 0 are skipped unless their ``statistics`` are asked for; weights in a
    tensor are not looked at, so that no exit is skipped and a CUDA graph may be given others. Or ``chosen`` says for
    every token which exit, from 0, it counts at; there are no weights then. A head maps states to scores and learns by
    its parameters; one head may serve several exits. ``in_bands`` says that heads also have ``nll`` and ``top``, and
    that their ``nll`` is cheaper than all scores (adaptive softmax); unlike the rest it waits for the device.
    """
    assert len(states) == len(heads) > 0
    if targets.teacher is not None:
        raise InputError("exits with a vocabulary learn from no other model; leave the teacher out")
    if (weights is None) == (chosen is None):
        raise InputError("exits count by weights or by what tokens chose; give one of weights and chosen")
    flat = labels.to(states[0].device).flatten()
    with torch.no_grad():
        num_types = heads[0](states[0].flatten(0, 1)[:0]).shape[-1]
    check_labels(labels, num_types)
    is_counted = flat != IGNORED
    count = torch.as_tensor(is_counted.sum() if num_items is None else num_items, device=flat.device)
    chunk = tokens_at_once or max(1, SCORES_AT_ONCE // num_types)
    if weights is not None:
        shares = exit_shares(weights, states)
        exits = [_Exit(state.flatten(0, 1), heads[i], flat, shares[i]) for i, state in enumerate(states)]
    else:
        assert chosen is not None
        chooses = _chooses(chosen, labels, len(states)).to(flat.device)
        if not statistics and not targets.from_last and all(head is heads[0] for head in heads):
            # One head scores every token once, at the exit that it chose.
            exits = [_Exit(_picked(states, chooses), heads[0], flat, 1.0)]
            found = _Run(targets, in_bands, chunk, keeps_nll=True).through(exits, flat, count)
            assert found.nll is not None
            is_here = chooses & is_counted
            nll = found.nll.expand(len(states), -1).masked_fill(~is_here, 0.0)
            return ExitLoss(found.loss, nll.sum(1), is_here.sum(1), None)
        own = flat.expand(len(states), -1).masked_fill(~chooses, IGNORED)
        exits = [_Exit(state.flatten(0, 1), heads[i], own[i], 1.0) for i, state in enumerate(states)]
    found = _Run(targets, in_bands, chunk, keeps_nll=statistics, keeps_guesses=statistics).through(exits, flat, count)
    kept = None
    if found.nll is not None and found.guesses is not None:
        nll, guesses = (values.view(len(states), *labels.shape) for values in (found.nll, found.guesses))
        kept = ExitStatistics(nll, guesses, guesses == flat.view(labels.shape))
    return ExitLoss(found.loss, found.nll_sums, found.num_tokens, kept)


class _Exit(NamedTuple):
    """One exit: its states, its head, the labels of those tokens that count here, and its share of the loss."""

    hidden: Float[Tensor, "M D"]
    head: nn.Module
    labels: Int[Tensor, "M"]
    share: float | Float[Tensor, ""]

    @property
    def learns(self) -> bool:
        return isinstance(self.share, Tensor) or self.share > 0


class _Said(NamedTuple):
    """What an exit says of a chunk: the sums of what it is to minimise and of nll, and what else was asked for."""

    total: Float[Tensor, ""]
    nll_sum: Float[Tensor, ""]
    nll: Float[Tensor, "M"] | None
    guesses: Int[Tensor, "M"] | None
    scores: Float[Tensor, "M V"] | None


class _Found(NamedTuple):
    """What all exits say of all tokens."""

    loss: Float[Tensor, ""]
    nll_sums: Float[Tensor, "E"]
    num_tokens: Int[Tensor, "E"]
    nll: Float[Tensor, "E M"] | None
    guesses: Int[Tensor, "E M"] | None


@dataclass(frozen=True)
class _Run:
    """The way through all exits, chunk by chunk."""

    targets: ExitTargets
    in_bands: bool
    chunk: int
    keeps_nll: bool = False
    keeps_guesses: bool = False

    def through(self, exits: list[_Exit], labels: Int[Tensor, "M"], count: Tensor) -> _Found:
        """``labels`` are those of all tokens, wherever they count."""
        num_exits, last, dtype = len(exits), len(exits) - 1, at_least_float32(exits[0].hidden[:0]).dtype
        learning = {index: exit_ for index, exit_ in enumerate(exits) if exit_.learns}
        gradients = EarlyGradients(
            {index: exit_.hidden for index, exit_ in learning.items()},
            {index: list(exit_.head.parameters()) for index, exit_ in learning.items()},
            count.clamp(min=1).to(dtype),
        )
        totals, nll_sums = ([labels.new_zeros((), dtype=dtype)] * num_exits for _ in range(2))
        num_tokens = [labels.new_zeros(())] * num_exits
        nll = labels.new_zeros(num_exits, len(labels), dtype=dtype) if self.keeps_nll else None
        guesses = labels.new_zeros(num_exits, len(labels)) if self.keeps_guesses else None
        for begin in range(0, len(labels), self.chunk):
            here = slice(begin, begin + self.chunk)
            teacher: Tensor | None = None
            for index in reversed(range(num_exits)):  # the teacher first
                exit_, is_teacher = exits[index], self.targets.from_last > 0 and index == last
                if not (exit_.learns or self.keeps_nll or is_teacher):
                    continue
                with torch.set_grad_enabled(gradients.are_wanted(index)):
                    hidden = exit_.hidden[here].detach().requires_grad_(gradients.is_wanted_of_states(index))
                    said = self.said(exit_.head, hidden, exit_.labels[here], labels[here], teacher)
                gradients.add(index, here, hidden, said.total, exit_.share)
                totals[index] = totals[index] + said.total.detach()
                nll_sums[index] = nll_sums[index] + said.nll_sum.detach()
                num_tokens[index] = num_tokens[index] + (exit_.labels[here] != IGNORED).sum()
                if nll is not None and said.nll is not None:
                    nll[index, here] = said.nll
                if guesses is not None and said.guesses is not None:
                    guesses[index, here] = said.guesses
                if is_teacher:
                    assert said.scores is not None
                    teacher = at_least_float32(said.scores).log_softmax(-1)
        total = torch.stack([exit_.share * totals[index] for index, exit_ in learning.items()]).sum()
        loss = gradients.behind(summed_over_items(total, count, count))
        return _Found(loss, torch.stack(nll_sums), torch.stack(num_tokens), nll, guesses)

    def said(
        self,
        head: nn.Module,
        hidden: Float[Tensor, "M D"],
        labels: Int[Tensor, "M"],
        all_labels: Int[Tensor, "M"],
        teacher: Float[Tensor, "M V"] | None,
    ) -> _Said:
        """By all scores, and learning from labels, from a teacher where there is one, or from both."""
        if self.in_bands and not self.targets.smoothing and not self.targets.from_last:
            return self.said_in_bands(head, hidden, labels, all_labels)
        scores = head(hidden)
        smoothing, over_others, one = self.targets.smoothing, self.targets.over_others, labels.new_ones(())
        share = 0.0 if teacher is None else self.targets.from_last
        if share < 1:
            total, nll_sum, _ = label_smoothed_cross_entropy(scores, labels, smoothing, one, over_others=over_others)
        if teacher is not None:
            log_probs = at_least_float32(scores).log_softmax(-1)
            divergence = DIVERGENCES[self.targets.divergence](log_probs, teacher)
            taught = divergence.masked_fill(labels == IGNORED, 0.0).sum()
            total = taught if share == 1 else (1 - share) * total + share * taught
            nll_sum = F.nll_loss(log_probs.detach(), labels, ignore_index=IGNORED, reduction="sum")
        scores, nll = scores.detach(), None
        if self.keeps_nll:
            nll = F.cross_entropy(at_least_float32(scores), all_labels, ignore_index=IGNORED, reduction="none")
        return _Said(total, nll_sum, nll, scores.argmax(-1) if self.keeps_guesses else None, scores)

    def said_in_bands(
        self, head: Any, hidden: Float[Tensor, "M D"], labels: Int[Tensor, "M"], all_labels: Int[Tensor, "M"]
    ) -> _Said:
        """By no more scores than labels need, unless first guesses are wanted too."""
        asked = all_labels if self.keeps_nll else labels
        is_asked = asked != IGNORED
        found = head.nll(hidden[is_asked], asked[is_asked])
        total = found[labels[is_asked] != IGNORED].sum()
        nll, guesses = None, None
        if self.keeps_nll:
            nll = found.new_zeros(len(asked)).masked_scatter(is_asked, found.detach())
        if self.keeps_guesses:
            with torch.no_grad():
                guesses = head.top(hidden, 1)[1].squeeze(-1)
        return _Said(total, total, nll, guesses, None)


def exit_shares(weights: Sequence[float] | Float[Tensor, "E"], states: Sequence[Tensor]) -> Sequence[float | Tensor]:
    """Weights divided by their sum."""
    if len(weights) != len(states):
        raise InputError(f"there are {len(weights)} weights for {len(states)} exits; give one for each")
    if isinstance(weights, Tensor):
        weights = weights.detach().to(states[0].device, at_least_float32(states[0][:0]).dtype)
        return (weights / weights.sum()).unbind()
    if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        listed = ", ".join(f"{weight:g}" for weight in weights)
        raise InputError(f"weights of exits are numbers from 0 on, and not all are 0; found {listed}")
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _chooses(chosen: Int[Tensor, "B T"], labels: Int[Tensor, "B T"], num_exits: int) -> Bool[Tensor, "E M"]:
    """Which exit each token counts at. Only a choice on the CPU is looked into."""
    if chosen.device.type == labels.device.type == "cpu":
        is_outside = ((chosen < 0) | (chosen >= num_exits)) & (labels != IGNORED)
        if bool(is_outside.any()):
            found = int(chosen[is_outside][0])
            raise InputError(f"a token chose exit {found}; choose from 0 to {num_exits - 1}, the last of the exits")
    return torch.arange(num_exits, device=chosen.device).unsqueeze(1) == chosen.flatten()


def _picked(states: Sequence[Float[Tensor, "B T D"]], chooses: Bool[Tensor, "E M"]) -> Float[Tensor, "M D"]:
    """The state of every token at the exit that it chose."""
    picked = states[0].flatten(0, 1)
    for state, is_here in zip(states[1:], chooses[1:], strict=True):
        picked = torch.where(is_here.unsqueeze(1), state.flatten(0, 1), picked)
    return picked
