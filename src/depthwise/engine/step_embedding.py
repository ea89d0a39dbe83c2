"""The embedding of a decoder, one step at a time."""

import numpy as np
import torch

from depthwise.engine.rows import on_device
from depthwise.models.embedding import Embedding
from depthwise.shapes import Float, Int, Tensor

FIRST_STEPS = 64


class StepEmbedding:
    """What ``Embedding`` gives in inference. Vectors of positions are kept, and made for twice as many when needed."""

    def __init__(self, embedding: Embedding, max_steps: int | None) -> None:
        self.embedding, self.max_steps = embedding, max_steps
        self._positions = self.of_steps(FIRST_STEPS)

    def __call__(
        self, ids: Int[Tensor, "B"], step: int | np.ndarray, padding: Int[Tensor, "B"] | None = None
    ) -> Float[Tensor, "B D"]:
        """States of the tokens in this column, or in one of its own for each row.

        ``padding`` counts the columns before the first token of each row.
        """
        positions: Tensor | None = None
        if self.embedding.positions is not None:
            last = step if isinstance(step, int) else int(step.max())
            if last >= len(self._positions):
                self._positions = self.of_steps(2 * last)
            at = step if isinstance(step, int) else on_device(step, ids.device)
            positions = self._positions[at if padding is None else at - padding]
        return self.at(ids, positions)

    def at(self, ids: Int[Tensor, "B"], positions: Float[Tensor, "... _e"] | None) -> Float[Tensor, "B D"]:
        """States of tokens with the vectors of their positions."""
        embedding = self.embedding
        x = embedding.scale * embedding.tokens(ids.unsqueeze(1)).squeeze(1)
        if positions is not None:
            x = x + positions.to(x.dtype)
        if embedding.token_types is not None:
            x = x + embedding.token_types.weight[0]
        if embedding.norm is not None:
            x = embedding.norm(x)
        return x if embedding.projection is None else embedding.projection(x)

    def of_steps(self, count: int) -> Float[Tensor, "L _e"]:
        """The vectors of so many positions, or of as many as there are."""
        count = count if self.max_steps is None else min(count, self.max_steps)
        device = next(self.embedding.parameters()).device
        if self.embedding.positions is None:
            return torch.empty(0, 0, device=device)
        steps = torch.arange(count, device=device) + self.embedding.offset
        return self.embedding.positions(steps.unsqueeze(0)).squeeze(0)
