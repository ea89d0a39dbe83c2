"""Sources that a GPU encodes by itself: few tokens take it less time than Python needs to name the kernels."""

import torch

from depthwise.engine.recorder import Recorder
from depthwise.engine.static_tables import Arena, rounded_up
from depthwise.models.sides import Encoder
from depthwise.shapes import Bool, Float, Int, Tensor

LEAST_LENGTH = 16
"""Steps that tables have room for at least."""
MOST_TOKENS = 2048
"""Tokens, padding included, up to which this is done: with more, kernels take longer than their names."""


class RecordedEncoder:
    """Runs the whole stack for powers of two of rows and steps; what is behind a source is padding to it."""

    def __init__(self, encoder: Encoder, arena: Arena, recorder: Recorder) -> None:
        self.encoder, self.arena, self.recorder = encoder, arena, recorder

    def serves(self, input_ids: Int[Tensor, "B T"]) -> bool:
        """Whether these are few enough, and every token runs the same layers of this encoder."""
        encoder, (rows, length) = self.encoder, _rounded(input_ids)
        is_plain = encoder.structure is None and encoder.latent is None and not encoder.training
        has_positions = encoder.max_positions is None or length <= encoder.max_positions
        return is_plain and has_positions and bool(input_ids.numel()) and rows * length <= MOST_TOKENS

    def __call__(self, input_ids: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T D"]:
        """The states of known tokens, as the decoder sees them."""
        encoder, (rows, length) = self.encoder, _rounded(input_ids)
        (num_rows, num_steps), moves = input_ids.shape, self.arena.num_moves
        ids = self.arena.table("encoder ids", rows, length, dtype=torch.long)
        real = self.arena.table("encoder valid", rows, length, dtype=torch.bool)
        states = self.arena.table("encoder states", rows, length, self.arena.like.shape[-1])
        if self.arena.num_moves > moves:
            self.recorder.forget()
        ids.zero_()[:num_rows, :num_steps] = input_ids
        real.zero_()[:num_rows, :num_steps] = True if valid is None else valid
        real[num_rows:, 0] = True  # a row without any token has no softmax

        def work() -> None:
            states.copy_(encoder.stack.run_all(encoder.embedding(ids, real), valid=real).final)

        self.recorder(("encoder", rows, length), work)
        return states[:num_rows, :num_steps].clone()


def _rounded(input_ids: Int[Tensor, "B T"]) -> tuple[int, int]:
    num_rows, num_steps = input_ids.shape
    return rounded_up(num_rows), rounded_up(num_steps, LEAST_LENGTH)
