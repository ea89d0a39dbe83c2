"""Recorded steps under a policy: a piece of work from each exit to the next, for the rows that still run."""

import numpy as np

from depthwise.depth import Policy
from depthwise.engine.prepared import Prepared
from depthwise.engine.rows import Rows, on_device
from depthwise.engine.static_exits import Exits
from depthwise.engine.static_state import StaticState
from depthwise.engine.static_stepper import StaticStepper
from depthwise.engine.static_tables import Chosen, rounded_up
from depthwise.engine.stepping import Contexts, check_plan, on_host

LATE_STEP = 4
"""What blocks write for columns that have left is recorded for 1, 4, 16, ... of them."""


class AdaptiveStepper(StaticStepper):
    """Steps in which rows leave early; what they skipped is written when it is next read (``CopyDeferred``).

    The host waits for the device once per step where depths are planned, and once per exit where policies look there.
    """

    asks_apart = False
    """Whether policies are asked in pieces of work of their own: only good for measuring how long these take."""

    def __init__(self, prepared: Prepared, state: StaticState, policy: Policy) -> None:
        super().__init__(prepared, state)
        self.policy, self.asked = policy, state.recording.asked(policy)
        self.contexts = Contexts(state, prepared.model.exit_depths)
        self._rows, self._depth = state.everybody, 0
        self._in_index: Rows | None = None
        self._unscored: list[tuple[Rows, int]] = []

    def _advance(self, restricts: bool | None = None) -> None:
        state, layout, count = self.state, self.layout, self.state.bucket

        def begin() -> None:
            layout.x[:count] = layout.begin(count)

        state.do("begin", begin)
        self._rows, self._depth, self._unscored, self._in_index = state.everybody, 0, [], None
        self.depths = np.zeros(state.num_rows, dtype=np.int64)
        if self.policy.plans:
            self._follow_plan()
        else:
            self._follow_policy()
        self._leave(np.ones(len(self._rows), dtype=bool), is_scored=False)
        self._score()

        def end() -> None:
            layout.end(count, layout.x[:count])
            if restricts is not None:
                layout.tokens[:count] = layout.choice.choose(layout.logits[:count], restricts=restricts)

        state.do(("end", restricts), end)

    def _follow_plan(self) -> None:
        planned = on_host(self.policy.plan(self.contexts.whole()), self.state.num_rows)
        check_plan(planned, self.num_layers)
        for depth in sorted(set(planned.tolist())):
            self._run_to(depth)
            self._leave(planned[self._rows.numbers] == depth, is_scored=False)

    def _follow_policy(self) -> None:
        exits = self.state.recording.exits(self.layout, self.asked)
        for depth in exits.depths[:-1]:
            if self.asked.can_be_recorded:
                self._run_to(depth, exits)
            else:
                self._run_to(depth)
                rows = self._rows
                exits.ask(depth, Chosen(len(rows), rows.selection), self.contexts.of(rows))
            leaves: np.ndarray = self.layout.leaves[: len(self._rows)].cpu().numpy()
            self._leave(leaves, is_scored=depth in exits.scored)
            if not len(self._rows):
                return
        self._run_to(self.num_layers)

    def _run_to(self, depth: int, exits: Exits | None = None) -> None:
        """Run those who have not left until they have come so deep, and ask the policy there, if that is recorded."""
        layers, layout, chosen = range(self._depth, depth), self.layout, self._chosen(self._rows)
        late = tuple(self._num_late(layer, self._rows) for layer in layers)
        self.state.show_source(layers)

        def run() -> None:
            x = chosen.of(layout.x)
            for layer, num_late in zip(layers, late, strict=True):
                x = layout.run(layer, x, chosen, num_late)
            chosen.put(layout.x, x)
            layout.note_written(layers, chosen)

        def ask() -> None:
            assert exits is not None
            exits.ask(depth, chosen)

        def run_and_ask() -> None:
            run()
            ask()

        self.num_run, self._depth = self.num_run + len(self._rows) * len(layers), depth
        blocks = ("blocks", layers, late, chosen.key)
        if exits is None:
            if layers:
                self.state.do(blocks, run)
        elif self.asks_apart:
            self.state.do(blocks, run)
            self.state.do(("ask", depth, chosen.key, exits.key), ask)
        else:
            self.state.do((*blocks, exits.key), run_and_ask)

    def _num_late(self, layer: int, rows: Rows) -> int:
        """How many columns before the newest a block looks at for what it has not written of these rows."""
        state, reach = self.state, self.layout.mixers[layer].reach
        begins = rows.get(state.written[layer])
        rows.set(state.written[layer], state.length + 1)
        if reach is not None:
            begins = np.maximum(begins, state.length - reach)
        counts = state.length - begins
        self.num_filled += int(counts.sum())
        most, bucket = int(counts.max()), 1
        while bucket < most:
            bucket *= LATE_STEP
        return min(bucket, self.layout.size.capacity if reach is None else reach) if most else 0

    def _chosen(self, rows: Rows) -> Chosen:
        """These rows, with the index of their numbers where they are not all."""
        if rows.are_all:
            return Chosen(self.state.bucket)
        count = min(rounded_up(len(rows)), self.state.bucket)
        if rows is not self._in_index:
            padded = np.full(count, self.layout.clock.nobody)
            padded[: len(rows)] = rows.numbers
            self.layout.index[:count] = on_device(padded, self.state.device)
            self._in_index = rows
        return Chosen(count, self.layout.index[:count])

    def _leave(self, which: np.ndarray, *, is_scored: bool) -> None:
        """These of the rows that run leave at the depth they have come to."""
        if not which.any():
            return
        left, self._rows = self._rows.those(which), self._rows.those(~which)
        self.depths[left.numbers] = self._depth
        if not is_scored:
            self._unscored.append((left, self._depth))

    def _score(self) -> None:
        """Scores of rows that have none yet, by the exits where they left: of all at once where these are alike."""
        if self.prepared.exits_are_alike and self._unscored:
            numbers = np.sort(np.concatenate([rows.numbers for rows, _ in self._unscored]))
            rows = Rows(numbers, self.state.num_rows, self.state.device)
            self._unscored = [(rows, self.num_layers)]
        layout = self.layout
        for rows, depth in self._unscored:
            chosen = self._chosen(rows)

            def work(chosen: Chosen = chosen, depth: int = depth) -> None:
                chosen.put(layout.logits, layout.scores(chosen.of(layout.x), depth))

            self.state.do(("score", depth, chosen.key), work)
