"""Steps of decoding that a GPU repeats by itself."""

from abc import ABC, abstractmethod

import numpy as np

from depthwise.engine.prepared import Prepared
from depthwise.engine.static_layout import Layout
from depthwise.engine.static_state import StaticState
from depthwise.engine.static_tables import Chosen
from depthwise.engine.stepping import Step
from depthwise.shapes import Int, Tensor


class StaticStepper(ABC):
    """What ``Stepper`` and ``Fill`` are together, from recorded work.

    ``num_run`` and ``num_filled`` count as those of a ``Fill`` do; ``depths`` are those of the newest column.
    """

    def __init__(self, prepared: Prepared, state: StaticState) -> None:
        self.prepared, self.state = prepared, state
        self.num_layers = prepared.decoder.stack.num_layers
        self.num_run = self.num_filled = 0
        self.depths = np.zeros(state.num_rows, dtype=np.int64)

    @property
    def layout(self) -> Layout:
        layout = self.state.layout
        assert isinstance(layout, Layout), "steps are recorded on tables for steps"
        return layout

    @property
    def has_room(self) -> bool:
        """Whether the decoder knows a position for the next column."""
        return self.prepared.has_column(self.state.length)

    def step(self, tokens: Int[Tensor, "B"]) -> Step:
        """Feed one token of each row."""
        self.prepared.check_column(self.state.begin_column())
        self.layout.tokens[: len(tokens)] = tokens
        self._advance()
        self.state.length += 1
        return Step(self.layout.logits[: self.state.num_rows], self.depths)

    def step_greedily(self, *, restricts: bool) -> None:
        """Feed the tokens that were chosen last, and choose the next ones."""
        self.prepared.check_column(self.state.begin_column())
        self._advance(restricts=restricts)
        self.state.length += 1

    @abstractmethod
    def _advance(self, restricts: bool | None = None) -> None:
        """Run the newest column of all rows. With ``restricts``, their next tokens are chosen, under limits or not."""


class WholeStepper(StaticStepper):
    """Steps in which every row runs the same blocks: one piece of work."""

    def __init__(self, prepared: Prepared, state: StaticState, depth: int) -> None:
        super().__init__(prepared, state)
        self.depth = depth

    def _advance(self, restricts: bool | None = None) -> None:
        state, layout, count, depth = self.state, self.layout, self.state.bucket, self.depth

        def work() -> None:
            x = layout.begin(count)
            for layer in range(depth):
                x = layout.run(layer, x, Chosen(count))
            layout.end(count, x)
            logits = layout.scores(x, depth)
            if restricts is None:
                layout.logits[:count] = logits
            else:
                layout.tokens[:count] = layout.choice.choose(logits, restricts=restricts)

        state.show_source(range(depth))
        state.do(("whole", depth, restricts), work)
        self.num_run += state.num_rows * depth
        self.depths = np.full(state.num_rows, depth)
