"""The embedding of a decoder, one step at a time."""

import torch

from depthwise.models.embedding import Embedding
from depthwise.shapes import Float, Int, Tensor

FIRST_STEPS = 64


class StepEmbedding:
    """What ``Embedding`` gives in inference. Vectors of positions are made once, for twice as many whenever needed."""

    def __init__(self, embedding: Embedding, max_steps: int | None) -> None:
        self.embedding, self.max_steps = embedding, max_steps
        self._positions: Float[Tensor, "L _e"] | None = None

    def __call__(
        self, ids: Int[Tensor, "B"], step: int, padding: Int[Tensor, "B"] | None = None
    ) -> Float[Tensor, "B 1 D"]:
        """States of the tokens in this column; ``padding`` counts the columns before the first token of each row."""
        embedding = self.embedding
        x = embedding.scale * embedding.tokens(ids.unsqueeze(1))
        if embedding.positions is not None:
            known = self._known(step + 1, x)
            x = x + (known[step] if padding is None else known[step - padding].unsqueeze(1))
        if embedding.token_types is not None:
            x = x + embedding.token_types.weight[0]
        if embedding.norm is not None:
            x = embedding.norm(x)
        return x if embedding.projection is None else embedding.projection(x)

    def _known(self, num_steps: int, like: Tensor) -> Float[Tensor, "L _e"]:
        if self._positions is None or len(self._positions) < num_steps:
            count = max(2 * num_steps, FIRST_STEPS)
            count = count if self.max_steps is None else min(count, self.max_steps)
            steps = torch.arange(count, device=like.device) + self.embedding.offset
            assert self.embedding.positions is not None
            self._positions = self.embedding.positions(steps.unsqueeze(0)).squeeze(0).to(like.dtype)
        return self._positions
