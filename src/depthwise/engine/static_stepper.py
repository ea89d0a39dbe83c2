"""Steps of decoding that a GPU repeats by itself: at full depth a whole step at once, under a policy block by block."""

from collections.abc import Hashable

import numpy as np

from depthwise.engine.prepared import Prepared
from depthwise.engine.recorder import Work
from depthwise.engine.static_layout import Layout
from depthwise.engine.static_state import StaticState
from depthwise.engine.static_tables import Chosen
from depthwise.engine.stepping import Step
from depthwise.shapes import Float, Int, Tensor


class StaticStepper:
    """What ``Stepper`` is, from recorded work."""

    def __init__(self, prepared: Prepared, state: StaticState) -> None:
        self.prepared, self.state = prepared, state
        self.num_layers, self.num_run = prepared.decoder.stack.num_layers, 0

    @property
    def has_room(self) -> bool:
        """Whether the decoder knows a position for the next column."""
        return self.prepared.has_column(self.state.length)

    def step(self, tokens: Int[Tensor, "B"]) -> Step:
        """Feed one token of each row."""
        state = self.state
        self.prepared.check_column(state.begin_column())
        layout, count = state.layout, state.bucket
        layout.tokens[: len(tokens)] = tokens

        def work() -> None:
            layout.logits[:count] = self._run(layout, count)

        self._do("step", work)
        return Step(layout.logits[: state.num_rows], np.full(state.num_rows, self.num_layers))

    def step_greedily(self, *, restricts: bool) -> None:
        """Feed the tokens that were chosen last, and choose the next ones."""
        self.prepared.check_column(self.state.begin_column())
        layout, count = self.state.layout, self.state.bucket

        def work() -> None:
            layout.tokens[:count] = layout.choice.choose(self._run(layout, count), restricts=restricts)

        self._do(("greedy", restricts), work)

    def _run(self, layout: Layout, count: int) -> Float[Tensor, "R V"]:
        """The whole stack for the newest column of the first rows."""
        x = layout.begin(count)
        for layer in range(self.num_layers):
            x = layout.run(layer, x, Chosen(count))
        layout.end(count, x)
        return self.prepared.scores(x)

    def _do(self, key: Hashable, work: Work) -> None:
        self.state.show_source(range(self.num_layers))
        self.state.do(key, work)
        self.state.length += 1
        self.num_run += self.state.num_rows * self.num_layers
