"""One step of decoding under a policy: each row runs as deep as it has to, and is scored by the exit where it left."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import torch

from depthwise.depth import Context, Policy, State, Visit
from depthwise.engine.decoder_state import DecoderState
from depthwise.engine.fills import Fill
from depthwise.engine.prepared import Prepared
from depthwise.engine.rows import Rows, on_device
from depthwise.errors import InputError
from depthwise.models.adaptive import precise
from depthwise.models.stack import Source
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Step:
    """Scores of the next token, as the heads give them, and how deep each row ran for them."""

    logits: Float[Tensor, "B V"]
    depths: np.ndarray


class Rearranged(Protocol):
    """Memories whose rows a search moves (see ``DecoderState``)."""

    def reorder(self, sources: np.ndarray) -> None: ...

    def drop(self, leaves: np.ndarray) -> np.ndarray: ...


class Known(Protocol):
    """What policies may know of a decoding (see ``DecoderState``)."""

    source: Source | None
    rows_each: int
    padding: Int[Tensor, "B"] | None
    num_rows: int
    length: int
    device: torch.device


class Steps(Protocol):
    """What a search needs: scores of one token after the other."""

    @property
    def state(self) -> Rearranged: ...

    def step(self, tokens: Int[Tensor, "B"]) -> Step: ...


class Stepper:
    """Runs the newest column of all rows, one column after the other.

    The host waits for the device once per step where depths are planned, and once per exit where policies look there.
    """

    def __init__(self, prepared: Prepared, state: DecoderState, fill: Fill, policy: Policy | None) -> None:
        self.prepared, self.state, self.fill, self.policy = prepared, state, fill, policy
        self.stack, self.exits = prepared.decoder.stack, prepared.model.exit_depths
        self.contexts = Contexts(state, self.exits)

    def step(self, tokens: Int[Tensor, "B"]) -> Step:
        """Feed one token of each row."""
        state = self.state
        column = state.begin_column()
        self.prepared.check_column(column)
        walk = _Walk(self, self.prepared.embedding(tokens, column, state.padding))
        if self.policy is None:
            walk.run_to(self.stack.num_layers)
        elif self.policy.plans:
            walk.follow_plan(self.policy)
        else:
            walk.follow_policy(self.policy)
        walk.leave(np.ones(len(walk.rows), dtype=bool))
        self.fill.finish(walk.states())
        return Step(walk.logits(), walk.depths)


class Contexts:
    """What policies know of the rows of a decoding."""

    def __init__(self, state: Known, exits: tuple[int, ...]) -> None:
        self.state, self.exits = state, exits
        self._known_source: tuple[Source, Tensor, Tensor | None] | None = None

    def whole(self) -> Context:
        """Of all rows."""
        state = self.state
        steps = torch.full((state.num_rows, 1), state.length, device=state.device)
        steps = steps if state.padding is None else steps - state.padding.unsqueeze(1)
        source, valid = self._source_by_row()
        return Context(shape=(state.num_rows, 1), exits=self.exits, steps=steps, source=source, source_valid=valid)

    def of(self, rows: Rows) -> Context:
        """Of some."""
        whole = self.whole()
        return whole if rows.are_all else _SomeRows(whole, rows.index)

    def _source_by_row(self) -> tuple[Tensor | None, Tensor | None]:
        """The source of each row; it is another one when rows have come or gone."""
        source, each = self.state.source, self.state.rows_each
        if source is None:
            return None, None
        if self._known_source is None or self._known_source[0] is not source:
            valid = None if source.valid is None else source.valid.repeat_interleave(each, dim=0)
            states = source.states if each == 1 else source.states.repeat_interleave(each, dim=0)
            self._known_source = source, states, valid
        return self._known_source[1:]


@dataclass(frozen=True)
class _Left:
    """Rows that left at one depth, with their states and, where a policy looked at them, their scores."""

    rows: Rows
    x: Float[Tensor, "R D"]
    logits: Float[Tensor, "R V"] | None
    depth: int


class _Walk:
    """The rows of one column on their way through the stack: those that run, and those that have left."""

    def __init__(self, stepper: Stepper, x: Float[Tensor, "B D"]) -> None:
        self.stepper, self.prepared, self.stack = stepper, stepper.prepared, stepper.stack
        self.rows, self.x, self.depth = stepper.state.everybody, x, 0
        self.depths = np.zeros(len(x), dtype=np.int64)
        self._left: list[_Left] = []
        self._logits: Tensor | None = None

    def run_to(self, depth: int) -> None:
        """Run those who have not left until they have come so deep."""
        while self.depth < depth:
            self.x = self.stepper.fill.run(self.depth, self.x, self.rows)
            self.depth, self._logits = self.depth + 1, None

    def follow_plan(self, policy: Policy) -> None:
        """Ask before the first block."""
        planned = on_host(policy.plan(self.stepper.contexts.whole()), len(self.x))
        check_plan(planned, self.stack.num_layers)
        for depth in sorted(set(planned.tolist())):
            self.run_to(depth)
            self.leave(planned[self.rows.numbers] == depth)

    def follow_policy(self, policy: Policy) -> None:
        """Ask at every exit but the last."""
        whole, remembered, before = self.stepper.contexts.whole(), State(), None
        context = whole
        for depth in self.stepper.exits[:-1]:
            self.run_to(depth)
            hidden = self.stack.normalized(self.x.unsqueeze(1), depth)
            visit = Visit(
                depth=depth,
                hidden=hidden,
                before=before,
                context=context,
                scoring=partial(self._scores, hidden),
            )
            leaves, remembered = policy.leaving(visit, remembered)
            before, left = hidden, on_host(leaves, len(self.x))
            if left.all():
                return
            if left.any():
                self.leave(left)
                staying = on_device(np.flatnonzero(~left), self.x.device)
                before = before.index_select(0, staying)
                remembered = {name: value.index_select(0, staying) for name, value in remembered.items()}
                context = _SomeRows(whole, self.rows.index)
        self.run_to(self.stack.num_layers)

    def _scores(self, hidden: Float[Tensor, "R 1 D"]) -> Float[Tensor, "R 1 V"]:
        """Log-probabilities for the policy; those who leave then have their scores already."""
        logits = self.prepared.head_at(self.depth)(hidden)
        self._logits = logits.squeeze(1)
        return logits if self.prepared.scores_are_normalized else precise(logits).log_softmax(-1)

    def leave(self, which: np.ndarray) -> None:
        """These of the rows that run leave at the depth they have come to."""
        rows, x, logits = self.rows.those(which), self.x, self._logits
        if not which.all():
            gone, kept = (on_device(np.flatnonzero(chosen), x.device) for chosen in (which, ~which))
            self.x, x = x.index_select(0, kept), x.index_select(0, gone)
            if logits is not None:
                self._logits, logits = logits.index_select(0, kept), logits.index_select(0, gone)
        self.rows = self.rows.those(~which)
        if len(rows):
            self.depths[rows.numbers] = self.depth
            self._left.append(_Left(rows, x, logits, self.depth))

    def states(self) -> Float[Tensor, "B D"]:
        """The state in which each row left."""
        return _joined([(left.rows, left.x) for left in self._left])

    def logits(self) -> Float[Tensor, "B V"]:
        """Scores of each row by the exit where it left. A head that serves several exits runs once."""
        known = [(left.rows, left.logits) for left in self._left if left.logits is not None]
        others = [left for left in self._left if left.logits is None]
        seen = [self.stack.normalized(left.x.unsqueeze(1), left.depth).squeeze(1) for left in others]
        if others and self.prepared.has_one_head:
            scores = self.prepared.head_at(self.stack.num_layers)(torch.cat(seen)).split([len(x) for x in seen])
        else:
            scores = tuple(self.prepared.head_at(left.depth)(x) for left, x in zip(others, seen, strict=True))
        known += [(left.rows, logits) for left, logits in zip(others, scores, strict=True)]
        return _joined(known)


def _joined(parts: list[tuple[Rows, Tensor]]) -> Tensor:
    """Parts of a tensor in the order of the rows that they are of."""
    (rows, values), *others = parts
    if not others:
        return values
    whole = values.new_empty(rows.num_all, *values.shape[1:])
    for rows, values in parts:
        whole.index_copy_(0, rows.index, values)
    return whole


def check_plan(planned: np.ndarray, num_layers: int) -> None:
    least, most = planned.min(), planned.max()
    if least < 0 or most > num_layers:
        raise InputError(f"depths go from 0 (padding) to {num_layers}, the number of layers; found {least} to {most}")


def on_host(decided: Tensor, num_rows: int) -> np.ndarray:
    """One value for each row; here the host waits for the device."""
    on_host: np.ndarray = decided.expand(num_rows, 1).squeeze(1).cpu().numpy()
    return on_host


class _SomeRows(Context):
    """What is known of some rows. Their part of the source, which is large, is copied when a policy looks at it."""

    def __init__(self, whole: Context, rows: Int[Tensor, "R"]) -> None:
        super().__init__(shape=(len(rows), 1), exits=whole.exits, steps=whole.steps.index_select(0, rows))
        self.__dict__.update(_whole=whole, _rows=rows)
        for waiting in ("source", "source_valid"):
            del self.__dict__[waiting]

    @cached_property
    def source(self) -> Float[Tensor, "R S D"] | None:
        return self._taken("source")

    @cached_property
    def source_valid(self) -> Bool[Tensor, "R S"] | None:
        return self._taken("source_valid")

    def _taken(self, name: str) -> Tensor | None:
        value = getattr(self.__dict__["_whole"], name)
        return None if value is None else value.index_select(0, self.__dict__["_rows"])
