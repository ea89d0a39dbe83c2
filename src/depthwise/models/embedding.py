"""From ids to the states that enter a stack: token embedding, scale, positions, types, norm, dropout, projection."""

import math
from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F

from depthwise.config import ModelConfig, StackConfig
from depthwise.models.adaptive import AdaptiveEmbedding
from depthwise.shapes import Bool, Float, Int, Tensor

KEPT_STEPS = 4096
"""Vectors of as many positions are kept for all models of one width; those of longer texts are made anew."""


class Embedding(nn.Module):
    """x = dropout(sqrt(D) * E[id] + position), zero positions on padding.

    Positions are counted over real tokens from ``position_offset`` on, so that padding on the left shifts nothing.
    Where the options ask for it, the vector of the token's type joins the sum, a norm follows it, and all this has a
    width of its own (which D then stands for) until a linear map after the dropout.
    """

    def __init__(self, options: ModelConfig, stack: StackConfig, num_types: int, padding: int | None) -> None:
        super().__init__()
        width = options.width if options.embedding_width is None else options.embedding_width
        self.scale = math.sqrt(width) if options.scale_embedding else 1.0
        self.offset, self.dropout = options.position_offset, stack.dropout
        self.tokens: nn.Embedding | AdaptiveEmbedding = (
            nn.Embedding(num_types, width, padding_idx=padding)
            if options.adaptive is None
            else AdaptiveEmbedding(num_types, options.width, options.adaptive, padding)
        )
        self.positions: SinusoidalPositions | nn.Embedding | None = None
        if stack.positions == "sinusoidal":
            self.positions = SinusoidalPositions(width)
        elif stack.positions == "learned":
            assert stack.max_positions is not None
            self.positions = nn.Embedding(stack.max_positions + options.position_offset, width)
        self.token_types = nn.Embedding(options.token_types, width) if options.token_types else None
        self.norm = nn.LayerNorm(width, eps=stack.norm_epsilon) if options.embedding_norm else None
        self.projection = None if options.embedding_width is None else nn.Linear(width, options.width)

    @property
    def num_types(self) -> int:
        """How many ids have a vector."""
        tokens = self.tokens
        return tokens.num_embeddings if isinstance(tokens, nn.Embedding) else tokens.bounds[-1]

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        valid: Bool[Tensor, "B T"] | None = None,
        num_earlier: Int[Tensor, "B"] | None = None,
        type_ids: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """States of these ids; ``num_earlier`` counts the real tokens of each row that came before them.

        Where there are types and no ``type_ids``, every token is of type 0.
        """
        x = self.scale * self.tokens(ids)
        if self.positions is not None:
            x = x + self._positions(ids, valid, num_earlier, x.dtype)
        if self.token_types is not None:
            x = x + (self.token_types.weight[0] if type_ids is None else self.token_types(type_ids))
        if self.norm is not None:
            x = self.norm(x)
        x = F.dropout(x, self.dropout, self.training)
        return x if self.projection is None else self.projection(x)

    def _positions(
        self, ids: Tensor, valid: Tensor | None, num_earlier: Tensor | None, dtype: torch.dtype
    ) -> Float[Tensor, "_b T _e"]:
        assert self.positions is not None
        end = self.offset + ids.shape[1]
        kept = None
        if num_earlier is None and isinstance(self.positions, SinusoidalPositions):
            kept = self.positions.kept(end, ids.device, dtype)
        if valid is None and kept is not None:
            return kept[self.offset : end].unsqueeze(0)
        if valid is None:
            steps = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        else:
            steps = (valid.cumsum(1) - 1).clamp(min=0)
        if num_earlier is not None:
            steps = steps + num_earlier.unsqueeze(1)
        steps = steps + self.offset
        vectors = self.positions(steps).to(dtype) if kept is None else F.embedding(steps, kept)
        return vectors if valid is None else vectors.masked_fill(~valid.unsqueeze(-1), 0)


class SinusoidalPositions(nn.Module):
    """p(t) = [sin(t w_0) .. sin(t w_{m-1}), cos(t w_0) .. cos(t w_{m-1})], w_i = 10000^(-i / (m - 1)), m = D // 2.

    Sines and cosines in two halves and the exponent over m - 1, as in fairseq; an odd width ends in a zero. Angles are
    float32 products of frequencies made on the CPU, as in fairseq, on every device and in every precision of the model;
    their sines are taken in float64 (where the device has it), so that they do not depend on the device either.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, steps: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        make = frequencies if torch.compiler.is_compiling() else _kept_frequencies
        angles = steps.unsqueeze(-1).float() * make(self.width, steps.device)
        if steps.device.type != "mps":
            angles = angles.double()
        return F.pad(torch.cat([angles.sin(), angles.cos()], dim=-1), (0, self.width % 2))

    def kept(self, end: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "_l D"] | None:
        """The vectors of all positions below ``end`` and some more, made once for all; none where that may not be.

        What is compiled or recorded would take them for its own.
        """
        is_recorded = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if end > KEPT_STEPS or is_recorded or device.type == "meta" or torch.compiler.is_compiling():
            return None
        return _kept_vectors(self.width, 2 ** (end - 1).bit_length(), device, dtype)


@lru_cache(maxsize=64)
def _kept_vectors(width: int, count: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "L D"]:
    with torch.inference_mode(False):  # a training may want them next
        return SinusoidalPositions(width)(torch.arange(count, device=device).unsqueeze(0))[0].to(dtype)


def frequencies(width: int, device: torch.device) -> Float[Tensor, "m"]:
    """w_i for a width, on a device."""
    half = width // 2
    index = torch.arange(half, dtype=torch.float32, device="cpu")
    return torch.exp(index * (-math.log(10000) / max(half - 1, 1))).to(device)


_kept_frequencies = lru_cache(maxsize=64)(frequencies)
