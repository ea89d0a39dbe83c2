"""Lossless decoding: the first layers draft, the others verify, and what comes out is what the whole stack says.

It is no way of leaving early: every token that is kept has run every layer. A round (self-speculative decoding,
Elhoushi et al. 2024) drafts some tokens with the exit at one depth, runs the layers above it for all of them at once,
from the states in which the draft left them, and keeps the longest prefix that the whole stack would have said, with
one token of its own behind. What was rejected is taken back from the memories of all layers.
"""

from dataclasses import dataclass

import numpy as np
import torch

from depthwise.engine.decoder_state import DecoderState
from depthwise.engine.prepared import Model, Prepared
from depthwise.engine.rows import Pending, Rows
from depthwise.engine.search_options import SearchOptions
from depthwise.errors import InputError
from depthwise.shapes import Float, Int, Tensor


@dataclass(frozen=True)
class Drafts:
    """How drafting went: tokens drafted, those of them that were kept, and runs of the layers that verify."""

    num_drafted: int = 0
    num_accepted: int = 0
    num_verifications: int = 0

    def __add__(self, other: "Drafts") -> "Drafts":
        return Drafts(
            self.num_drafted + other.num_drafted,
            self.num_accepted + other.num_accepted,
            self.num_verifications + other.num_verifications,
        )

    @property
    def acceptance_rate(self) -> float:
        """Tokens kept among those drafted; 0 where none was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0


def check_lossless(model: Model, depth: int, num_drafted: int, options: SearchOptions) -> None:
    """``InputError`` where there is nothing to draft with, or nothing to verify by."""
    drafting = model.exit_depths[:-1]
    if model.policy is not None:
        raise InputError(
            "lossless decoding lets nobody leave early, but the model has a policy; call model.use_policy(None) first"
        )
    if not drafting:
        raise InputError("this model has no exit to draft at; train one with model.exits, or leave out lossless")
    if depth not in drafting:
        raise InputError(
            f"lossless is {depth}, but a draft needs an exit below the last; use one of {', '.join(map(str, drafting))}"
        )
    if num_drafted < 1:
        raise InputError(f"num_drafted is {num_drafted}; draft at least 1 token, or leave out lossless")
    if options.num_beams > 1:
        raise InputError("lossless decoding has no beams; leave out num_beams, or lossless")


class Speculation:
    """Runs the two parts of a stack over rows with lengths of their own, which can be taken back.

    ``num_run`` counts the tokens that ran a block, summed over blocks, rejected ones included.
    """

    def __init__(self, prepared: Prepared, state: DecoderState, depth: int) -> None:
        assert state.states is not None, "verification begins from the states of the draft"
        self.prepared, self.state, self.depth = prepared, state, depth
        self.stack, self.num_run = prepared.decoder.stack, 0
        self._states = state.states

    @property
    def lengths(self) -> np.ndarray:
        """How many columns of each row have run all layers; a copy."""
        lengths: np.ndarray = self.state.written[-1].copy()
        return lengths

    def room(self) -> np.ndarray:
        """How many columns behind the next one each row may have at most."""
        most, lengths = self.prepared.decoder.max_positions, self.lengths
        if most is None:
            return np.full(len(lengths), np.iinfo(np.int64).max)
        if lengths.max() >= most:
            name = self.prepared.decoder.name
            raise InputError(f"{name} has {lengths.max() + 1} steps but max_positions is {most}; ask for fewer tokens")
        room: np.ndarray = most - 1 - lengths
        return room

    def begin(self, tokens: Int[Tensor, "R"], rows: Rows) -> Float[Tensor, "R D"]:
        """Feed the next token of these rows to the layers that draft; returns their states at that depth."""
        state = self.state
        columns = rows.get(state.written[0])
        state.make_room(int(columns.max()) + 1)
        pending = Pending(rows, columns, columns + 1)
        at = columns if pending.single is None else pending.single
        x = self.prepared.embedding(tokens, at, None if state.padding is None else rows.of(state.padding))
        for layer in range(self.depth):
            x = self._run(layer, x, pending)
        if pending.single is None:
            self._states.put_at(pending.of_row, pending.columns, x)
        else:
            self._states.put(pending.single, x, rows.selection)
        return x

    def verify(self) -> Float[Tensor, "M V"]:
        """Scores by the whole stack of all that has been fed since the last time, one row after the other."""
        rows = self.state.everybody
        pending = Pending(rows, self.lengths, self.state.written[0].copy())
        x = self._states.at(pending.of_row, pending.columns)
        for layer in range(self.depth, self.stack.num_layers):
            x = self._run(layer, x, pending)
        return self.scores(x, self.stack.num_layers)

    def scores(self, x: Float[Tensor, "M D"], depth: int) -> Float[Tensor, "M V"]:
        """Scores of the next tokens by the exit of this depth."""
        return self.prepared.head_at(depth)(self.stack.normalized(x.unsqueeze(1), depth)).squeeze(1)

    def rewind(self, lengths: np.ndarray) -> None:
        """Take back all columns but so many of each row."""
        self.state.written[:] = lengths

    def _run(self, layer: int, x: Float[Tensor, "M D"], pending: Pending) -> Float[Tensor, "M D"]:
        state, rows, column = self.state, pending.rows, pending.single
        block, memory, source = state.blocks[layer], state.memories[layer], state.source_of(layer)
        self.num_run += len(x)
        rows.set(state.written[layer], pending.ends)
        if column is not None:
            return block.run(
                x, lambda entered: block.mixer.step(memory, entered, rows, column, state.padding, None), source, rows
            )
        return block.run(
            x, lambda entered: block.mixer.chunk(memory, entered, pending, state.padding), source, rows, pending
        )


class Agreement:
    """Greedy search: a drafted token is kept where it is the most probable one by the whole stack."""

    def begin_round(self, numbers: np.ndarray) -> None:
        """A round of drafting begins, for the rows of these numbers."""

    def draft(self, scores: Float[Tensor, "R V"], rows: Rows, slot: int) -> Int[Tensor, "R"]:
        """A token for each of these rows; ``slot`` says the how many-th of the draft, from 0."""
        return scores.argmax(-1)

    def agrees(self, scores: Float[Tensor, "M V"], drafted: Int[Tensor, "M"], of_row: Tensor, slots: Tensor) -> Tensor:
        """Whether drafted tokens are kept, each if all before it are."""
        return scores.argmax(-1) == drafted

    def instead(self, scores: Float[Tensor, "R V"], slots: Int[Tensor, "R"]) -> Int[Tensor, "R"]:
        """What follows the tokens that are kept, in these slots of the rows."""
        return scores.argmax(-1)


class RatioTest(Agreement):
    """Sampling: tokens come out with the probabilities p of the whole stack (Leviathan et al. 2023).

    A token drawn from the draft's q is kept with probability min(1, p/q); otherwise, one is drawn from what is left of
    p, max(0, p - q). Behind a draft that is kept, q is 0. Random numbers of a row come from its generator alone.
    """

    def __init__(self, generators: list[torch.Generator], num_drafted: int) -> None:
        self.generators, self.num_drafted = generators, num_drafted

    def begin_round(self, numbers: np.ndarray) -> None:
        count, generators = 2 * self.num_drafted + 1, [self.generators[number] for number in numbers]
        self._drawn = torch.stack([torch.rand(count, dtype=torch.float64, generator=each) for each in generators])
        self._by_draft: Tensor | None = None

    def draft(self, scores: Tensor, rows: Rows, slot: int) -> Tensor:
        shares = scores.double().softmax(-1)
        if self._by_draft is None:
            self._drawn = self._drawn.to(scores.device)
            self._by_draft = shares.new_zeros(rows.num_all, self.num_drafted + 1, shares.shape[1])
        self._by_draft[rows.index, slot] = shares
        return _drawn_from(shares, self._drawn[rows.index, slot])

    def agrees(self, scores: Tensor, drafted: Tensor, of_row: Tensor, slots: Tensor) -> Tensor:
        if self._by_draft is None:
            return torch.zeros_like(drafted, dtype=torch.bool)
        share = scores.double().softmax(-1).gather(1, drafted.unsqueeze(1)).squeeze(1)
        chance = self._drawn[of_row, self.num_drafted + slots.clamp(max=self.num_drafted - 1)]
        return chance * self._by_draft[of_row, slots, drafted] < share

    def instead(self, scores: Tensor, slots: Tensor) -> Tensor:
        left = scores.double().softmax(-1)
        if self._by_draft is not None:
            left = (left - self._by_draft[torch.arange(len(slots), device=slots.device), slots]).clamp(min=0)
        return _drawn_from(left, self._drawn[:, -1].to(scores.device))


def _drawn_from(weights: Float[Tensor, "R V"], drawn: Float[Tensor, "R"]) -> Int[Tensor, "R"]:
    """The first token by which the weights sum up to a random number's share of all."""
    summed = weights.cumsum(-1)
    return torch.searchsorted(summed, (drawn * summed[:, -1]).unsqueeze(1), right=True).squeeze(1)
