"""Tokens on their way through the blocks of an encoder."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from depthwise.engine.packed_blocks import PackedBlocks
from depthwise.engine.rows import on_device
from depthwise.memory import Index, Places, Sequences
from depthwise.mixers import SelfAttention
from depthwise.models.stack import Stack
from depthwise.shapes import Float, Tensor


class Walk:
    """Those that are still of use, all in one long row. Indices are the host's; only ``x``, their states, is elsewhere.

    ``origin`` says where they stood at the start, and ``depths`` how many blocks each token has run since; whoever lets
    them run counts. The states that a walk begins with are not its own: they stay as they are.
    """

    def __init__(self, stack: Stack, blocks: PackedBlocks, x: Float[Tensor, "1 N D"], rows: Index) -> None:
        self.stack, self.x, self._blocks = stack, x, blocks
        self.sequences, self.origin = Sequences.of(rows, x.device), np.arange(len(rows))
        self.depths = np.zeros(len(rows), dtype=np.int64)
        self._done, self._are_own = x, False
        self._told: dict[int, Places] = {}

    @cached_property
    def _has_grid(self) -> bool:
        stack = self.stack
        return any(isinstance(stack.block(layer).mixer, SelfAttention) for layer in range(stack.num_layers))

    @property
    def rows(self) -> Index:
        return self.sequences.rows

    def tell(self, layer: int, readers: Sequence[Index]) -> None:
        """Who runs this layer and those after it, as long as the tokens are the same: the device hears of it once."""
        told = Places.several(self.sequences, readers, in_grid=self.x.device.type != "cpu" and self._has_grid)
        self._told |= dict(enumerate(told, layer))

    def run(self, layer: int, weight: Float[Tensor, "1 A"] | None = None) -> None:
        """One block, for those who were told of or else for all."""
        places = self._told.get(layer)
        if places is None or places.num_readers == len(self.rows):
            places = Places(self.sequences)
        after = self._blocks.block(self.stack.block(layer)).run_packed(self.x, places, weight)
        if places.readers_there is None:
            self.x = after
        elif self._are_own:
            self.x.index_copy_(1, places.readers_there, after)
        else:
            self.x = self.x.index_copy(1, places.readers_there, after)
        self._are_own = True

    def keep(self, tokens: Index) -> None:
        """Go on with these tokens, whole sequences, alone."""
        if len(tokens) == len(self.rows):
            return
        self._put_aside()
        self.x, self._are_own = self.x.index_select(1, on_device(tokens, self.x.device)), True
        self.sequences, self.origin = Sequences.of(self.rows[tokens], self.x.device), self.origin[tokens]
        self._told = {}

    def result(self) -> Float[Tensor, "1 N D"]:
        """The last state of every token."""
        self._put_aside()
        return self._done

    def _put_aside(self) -> None:
        if len(self.origin) == self._done.shape[1]:
            self._done = self._states()
        else:
            self._done.index_copy_(1, on_device(self.origin, self.x.device), self.x)

    def _states(self) -> Float[Tensor, "1 N D"]:
        """Those of now, which nobody else writes to."""
        return self.x if self._are_own else self.x.clone()
