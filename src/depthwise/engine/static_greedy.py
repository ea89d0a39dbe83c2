"""Greedy search as a part of recorded steps: all that the host says is whether there is another one."""

import numpy as np
import torch

from depthwise.engine.restrictions import Restrictions
from depthwise.engine.rows import on_device
from depthwise.engine.search import Found, padding_of
from depthwise.engine.search_options import SearchOptions
from depthwise.engine.static_state import StaticState
from depthwise.engine.static_stepper import StaticStepper, WholeStepper
from depthwise.engine.static_tables import rounded_up
from depthwise.shapes import Int, Tensor

NEVER = 2**62
"""A step that nobody comes to."""


def search_greedy(
    stepper: StaticStepper, first: Int[Tensor, "B"], restrict: Restrictions, options: SearchOptions, num_steps: int
) -> Found:
    """``search_one`` without lots and without looking back.

    Where the device need not be asked in between, the host hears one step late who has ended, so that nobody waits: at
    the end there is a step too many, of which nothing is kept. Rows that have ended then stay where they are until the
    rest is half, since one piece of work does them all; where it does not, they leave at once.
    """
    state, is_whole = stepper.state, isinstance(stepper, WholeStepper)
    restricts = begin_choice(state, first, restrict)
    made, ended = Made(state, num_steps), Delayed(first.device)
    for step in range(num_steps):
        if not stepper.has_room and ended.last_says_all():
            break
        stepper.step_greedily(restricts=restricts)
        made.depths[made.numbers, step] = stepper.depths
        if not options.ends:
            continue
        reported = ended.exchange(state.layout.choice.ended[: state.num_rows])
        if not is_whole:
            reported = ended.last()
        if reported is None or not reported.any():
            continue
        if reported.all():
            break
        if not is_whole or rounded_up(int((~reported).sum())) < state.bucket:
            made.keep(np.flatnonzero(reported))
            made.numbers = made.numbers[state.drop(reported)]
            ended.forget()
    made.keep(np.arange(state.num_rows))
    return made.found(padding_of(options))


def begin_choice(state: StaticState, first: Int[Tensor, "B"], restrict: Restrictions) -> bool:
    """Texts begin from their first tokens; returns whether anything is forbidden."""
    choice, num_rows, bucket = state.layout.choice, state.num_rows, state.bucket
    state.layout.tokens[:num_rows] = first
    choice.ended[num_rows:bucket] = True
    choice.least[:bucket] = restrict.num_least
    choice.last[:bucket] = NEVER
    if restrict.limits is not None:
        choice.last[:num_rows] = restrict.limits - 1
    choice.is_end.zero_().index_fill_(0, restrict.ends, True)
    choice.is_suppressed.zero_()
    if restrict.suppressed is not None:
        choice.is_suppressed.index_fill_(0, restrict.suppressed, True)
    return bool(restrict.num_least) or restrict.suppressed is not None or restrict.limits is not None


class Made:
    """What rows have come to, by their numbers before any of them left."""

    def __init__(self, state: StaticState, num_steps: int) -> None:
        self.state, self.num_steps, self.numbers = state, num_steps, np.arange(state.num_rows)
        choice, num_rows = state.layout.choice, state.num_rows
        self.tokens = choice.out.new_zeros(num_rows, num_steps)
        self.scores = choice.scores.new_zeros(num_rows, num_steps)
        self.counts = choice.made.new_zeros(num_rows)
        self.depths = np.zeros((num_rows, num_steps), dtype=np.int64)

    def keep(self, rows: np.ndarray) -> None:
        """What these rows have made."""
        choice, steps = self.state.layout.choice, min(self.num_steps, self.state.layout.size.capacity)
        from_rows, to_rows = (on_device(x, self.tokens.device) for x in (rows, self.numbers[rows]))
        for kept, table in ((self.tokens, choice.out), (self.scores, choice.scores)):
            kept[:, :steps].index_copy_(0, to_rows, table[:, :steps].index_select(0, from_rows))
        self.counts.index_copy_(0, to_rows, choice.made.index_select(0, from_rows))

    def found(self, padding: int) -> Found:
        longest = int(self.counts.max())
        is_made = torch.arange(longest, device=self.tokens.device) < self.counts.unsqueeze(1)
        tokens = self.tokens[:, :longest].masked_fill(~is_made, padding)
        depths = on_device(self.depths[:, :longest], self.tokens.device) * is_made
        return Found(tokens, depths, self.scores[:, :longest].masked_fill(~is_made, 0))


class Delayed:
    """Carries what a device says to the host, which gets it when the next is sent."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sent: tuple[Tensor, int, torch.cuda.Event | None] | None = None
        self._free: list[Tensor] = []

    def exchange(self, said: Tensor) -> np.ndarray | None:
        """Send this, and get what was sent before; none where nothing was."""
        before, self._sent = self._sent, self._send(said)
        return None if before is None else self._received(*before)

    def last(self) -> np.ndarray | None:
        """What was sent last; here the host waits for it."""
        last, self._sent = self._sent, None
        return None if last is None else self._received(*last)

    def last_says_all(self) -> bool:
        last = self.last()
        return last is not None and bool(last.all())

    def _received(self, place: Tensor, count: int, event: torch.cuda.Event | None) -> np.ndarray:
        if event is not None:
            event.synchronize()
        received: np.ndarray = place[:count].numpy().copy()
        self._free.append(place)
        return received

    def forget(self) -> None:
        """What was sent is of no use any more."""
        self._sent = None

    def _send(self, said: Tensor) -> tuple[Tensor, int, torch.cuda.Event | None]:
        count, is_on_gpu = len(said), self.device.type == "cuda"
        place = self._free.pop() if self._free else torch.empty(count, dtype=said.dtype, pin_memory=is_on_gpu)
        place[:count].copy_(said, non_blocking=True)
        event = torch.cuda.Event() if is_on_gpu else None
        if event is not None:
            event.record()
        return place, count, event
