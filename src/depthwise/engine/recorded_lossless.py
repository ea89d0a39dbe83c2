"""Lossless greedy decoding from recorded rounds: all that the host says is whether there is another one."""

import numpy as np

from depthwise.engine.lossless import Drafts
from depthwise.engine.restrictions import Restrictions
from depthwise.engine.search import Found, padding_of
from depthwise.engine.search_options import SearchOptions
from depthwise.engine.static_greedy import Delayed, Made, begin_choice
from depthwise.engine.static_rounds import ENDED, Rounds
from depthwise.engine.static_state import StaticState
from depthwise.engine.static_tables import rounded_up
from depthwise.shapes import Int, Tensor


def search_rounds(
    state: StaticState,
    first: Int[Tensor, "B"],
    restrict: Restrictions,
    options: SearchOptions,
    num_steps: int,
    depth: int,
) -> tuple[Found, Drafts, int]:
    """What ``search_lossless`` finds without lots and without looking back, and how many blocks tokens ran.

    A round is two pieces of work. The host waits for each round, since one too many would take longer than that; while
    it hears and decides, the device does the first piece of the next one, which changes nothing that counts. Rows that
    have ended stay where they are until the rest is half.
    """
    rounds = _Recorded(state, depth, num_steps, restricts=begin_choice(state, first, restrict))
    made, said, num_layers = Made(state, num_steps), Delayed(first.device), len(state.blocks)
    made.depths[:] = num_layers
    is_begun, num_running, num_newest = False, state.num_rows, 0
    while num_running:
        if not is_begun:
            rounds.begin()
        rounds.end()
        num_newest += num_running
        said.exchange(rounds.layout.report[: state.num_rows])
        is_begun = state.has_room
        if is_begun:
            rounds.begin()
        ended = rounds.hear(said.last())
        num_running = int((~ended).sum())
        if num_running and rounded_up(num_running) < state.bucket:
            made.keep(np.flatnonzero(ended))
            made.numbers = made.numbers[state.drop(ended)]
            state.layout.choice.ended[state.num_rows : state.bucket] = True  # what others left there does not count
            is_begun = False
    made.keep(np.arange(state.num_rows))
    num_drafted, num_accepted, num_ends = rounds.layout.tallies.tolist()
    num_run = (num_newest + num_drafted - num_ends) * num_layers  # behind the end of a draft nothing runs
    return made.found(padding_of(options)), Drafts(num_drafted, num_accepted, rounds.num_rounds), num_run


class _Recorded:
    """Rounds as pieces of work. The state's ``length`` is as much as the longest row can have by what is known."""

    def __init__(self, state: StaticState, depth: int, num_steps: int, *, restricts: bool) -> None:
        self.state, self.depth, self.num_steps, self.restricts = state, depth, num_steps, restricts
        self.prepared, self.start, self.num_rounds = state.recording.prepared, state.length, 0
        self.prepared.check_column(self.start)
        positions = self.prepared.decoder.max_positions
        self.layout.begin_text(state.bucket, num_steps, None if positions is None else positions - self.start)
        state.show_source(range(len(state.blocks)))

    @property
    def layout(self) -> Rounds:
        layout = self.state.layout
        assert isinstance(layout, Rounds), "rounds are recorded on tables for rounds"
        return layout

    def begin(self) -> None:
        """Look where columns go, and run the newest one of each row as deep as drafts go."""
        self.state.begin_column()
        layout, count, depth, restricts = self.layout, self.state.bucket, self.depth, self.restricts

        self.state.do(("begin round", depth, restricts), lambda: layout.begin(count, depth, restricts=restricts))

    def end(self) -> None:
        """Draft the rest, verify it, and keep what agrees."""
        layout, count, depth, restricts = self.layout, self.state.bucket, self.depth, self.restricts

        self.state.do(("end round", depth, restricts), lambda: layout.end(count, depth, restricts=restricts))
        self.num_rounds += 1
        self.state.length = min(self.state.length + layout.num_slots, self.start + self.num_steps)

    def hear(self, report: np.ndarray | None) -> np.ndarray:
        """Who has ended; those who go on need a position for their next column."""
        assert report is not None, "every round makes a report"
        ended: np.ndarray = report >= ENDED
        num_made = report % ENDED
        self.state.length = self.start + int(num_made.max())
        if not ended.all():
            self.prepared.check_column(self.start + int(num_made[~ended].max()))
        return ended
