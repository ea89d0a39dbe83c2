"""Self-attention, unlimited or within a window, and attention over a source."""

from math import inf

from torch import float32, nn

from depthwise.config.relative import RelativeConfig
from depthwise.kernels.attention import attend, attend_source
from depthwise.kernels.relative import attend_relative
from depthwise.memory import KeyValueMemory, Places
from depthwise.mixers.base import Mixer
from depthwise.mixers.joint import Joint
from depthwise.mixers.linear import ScaledLinear, weights_of
from depthwise.shapes import Bool, Float, Int, Tensor

IN_GAIN = 0.5**0.5
"""Queries, keys and values start as one (3D, D) matrix would."""
WORTH_FOLDING = 1.5
"""How many times fewer operations folding must take: its products are smaller and there are more of them."""


class Projections(nn.Module):
    """Query, key, value and output projections, each with bias.

    Heads share the width among them, unless ``head_width`` says how wide one is: some may have been pruned.
    """

    joint: Joint | None = None
    """Queries, keys and values as one map, where their weights lie side by side for a while."""

    def __init__(self, width: int, num_heads: int, out_gain: float, head_width: int | None = None) -> None:
        super().__init__()
        inner = width if head_width is None else num_heads * head_width
        self.num_heads = num_heads
        self.query = ScaledLinear(width, inner, IN_GAIN)
        self.key = ScaledLinear(width, inner, IN_GAIN)
        self.value = ScaledLinear(width, inner, IN_GAIN)
        self.out = ScaledLinear(inner, width, out_gain)

    def split(self, x: Float[Tensor, "B T A"]) -> Float[Tensor, "B H T d"]:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge(self, x: Float[Tensor, "B H T d"]) -> Float[Tensor, "B T D"]:
        return self.out(x.transpose(1, 2).flatten(2))

    def folded(
        self, queries: Float[Tensor, "R H P d"], x: Float[Tensor, "1 N D"], places: Places
    ) -> Float[Tensor, "R P A"] | None:
        """What queries take from tokens whose keys and values nobody computes; none where that would take longer.

            q (W_K x + b_K) = (W_K' q) x + const,      sum_t a_t (W_V x_t + b_V) = W_V (sum_t a_t x_t) + b_V

        A constant is nothing to the softmax. Scores and sums are as many times wider as there are heads, but the two
        matrices meet P queries instead of all tokens. In 16 bits scores would be rounded, which attention keeps whole.
        """
        if min(queries.dtype.itemsize, x.dtype.itemsize) < float32.itemsize:
            return None
        (num_rows, heads, asked, head_width), (num_tokens, width) = queries.shape, x.shape[1:]
        longest, inner = places.sequences.longest, heads * head_width
        plain = 2 * num_tokens * width * inner + 2 * num_rows * asked * longest * inner
        if num_rows * asked * (2 * width * inner + 2 * longest * heads * width) * WORTH_FOLDING > plain:
            return None
        key, value = weights_of(self.key), weights_of(self.value)
        if key is None or value is None:
            return None
        by_head = queries.transpose(0, 1).reshape(heads, num_rows * asked, head_width)
        wide = (by_head * head_width**-0.5) @ key[0].view(heads, head_width, width)
        wide = wide.view(heads, num_rows, asked, width).transpose(0, 1).reshape(num_rows, heads * asked, width)
        tokens = places.grid(x)
        scores = wide @ tokens.transpose(1, 2)
        if places.valid is not None:
            scores = scores.masked_fill(~places.valid.unsqueeze(1), -inf)
        taken = (scores.softmax(-1) @ tokens).view(num_rows, heads, asked, width).transpose(0, 1)
        values = taken.reshape(heads, num_rows * asked, width) @ value[0].view(heads, head_width, width).transpose(1, 2)
        return values.transpose(0, 1).reshape(num_rows, asked, inner) + value[1]

    def keys_values(self, x: Tensor, valid: Tensor | None) -> KeyValueMemory:
        keys, values = (self.key(x), self.value(x)) if self.joint is None else self.joint.last(2)(x)
        return KeyValueMemory(self.split(keys), self.split(values), valid)


class Distances(nn.Embedding):
    """The vectors r[−K] to r[K] of distances. They are the stack's: all its blocks look them up."""

    def __init__(self, options: RelativeConfig, width: int) -> None:
        super().__init__(2 * options.max_distance + 1, width)


class SelfAttention(Mixer):
    """softmax(q k / sqrt(d)) v within one sequence (Vaswani et al. 2017).

    ``window`` counts the positions that are seen (Wu et al. 2019, Table 3): ``|i - j| <= (window - 1) / 2`` centred,
    ``0 <= i - j < window`` causal. With ``relative`` scores know distances, by a table that ``look_up`` names.
    ``head_width`` is for where some heads were pruned; else heads share the width.
    """

    distances: Distances | None = None

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        causal: bool,
        window: int | None = None,
        dropout: float = 0.0,
        out_gain: float = 1.0,
        relative: RelativeConfig | None = None,
        head_width: int | None = None,
    ) -> None:
        super().__init__()
        self.relative = relative
        self.causal, self.window, self.dropout = causal, window, dropout
        self.reach = None if window is None else window - 1
        self.projections = Projections(width, num_heads, out_gain, head_width)

    def look_up(self, distances: Distances) -> None:
        """The table to be used, which stays a part of whoever owns it."""
        object.__setattr__(self, "distances", distances)

    def write(self, x: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None = None) -> KeyValueMemory:
        return self.projections.keys_values(x, valid)

    def read(
        self, x: Float[Tensor, "B P D"], memory: KeyValueMemory, positions: Int[Tensor, "B P"] | None = None
    ) -> Float[Tensor, "B P D"]:
        return self._mixed(self.projections.query(x), memory, positions)

    def write_and_read(
        self, x: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None = None, past: KeyValueMemory | None = None
    ) -> tuple[Float[Tensor, "B T D"], KeyValueMemory]:
        if self.projections.joint is None:
            return super().write_and_read(x, valid, past)
        queries, keys, values = self.projections.joint(x)
        memory = KeyValueMemory(self.projections.split(keys), self.projections.split(values), valid)
        if past is not None:
            memory = past.append(memory)
        return self._mixed(queries, memory, None), memory

    def _mixed(
        self, queries: Float[Tensor, "B P A"], memory: KeyValueMemory, positions: Int[Tensor, "B P"] | None
    ) -> Float[Tensor, "B P D"]:
        queries = self.projections.split(queries)
        return self.projections.merge(self._attended(queries, memory.keys, memory.values, memory.valid, positions))

    def _attended(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor | None, positions: Tensor | None
    ) -> Float[Tensor, "B H P d"]:
        dropout = self.dropout if self.training else 0.0
        if self.relative is None:
            return attend(
                queries,
                keys,
                values,
                causal=self.causal,
                window=self.window,
                valid=valid,
                positions=positions,
                dropout=dropout,
            )
        assert self.distances is not None, "the stack names the table of distances"
        return attend_relative(
            queries,
            keys,
            values,
            self.distances.weight.to(queries.dtype),
            by_queries=self.relative.content_to_position,
            by_keys=self.relative.position_to_content,
            literal=self.relative.indexing == "literal",
            scale_terms=self.relative.scale_terms,
            causal=self.causal,
            window=self.window,
            valid=valid,
            positions=positions,
            dropout=dropout,
        )

    def mix_packed(self, x: Float[Tensor, "1 N D"], places: Places) -> Float[Tensor, "1 A D"]:
        """Every token is projected once; sequences are padded for the product of queries and keys alone.

        Where very few read, none is projected but they (``Projections.folded``).
        """
        project = self.projections
        queries = project.split(places.reader_grid(project.query(places.taken(x))))
        if self.relative is None and not self.causal and self.window is None and not self.training:
            folded = project.folded(queries, x, places)
            if folded is not None:
                return project.out(places.from_reader_grid(folded))
        keys, values = (project.split(places.grid(map_(x))) for map_ in (project.key, project.value))
        if self.relative is not None:
            positions = None if places.readers is None else places.positions
            mixed = self._attended(queries, keys, values, places.valid, positions)
        elif self.causal or self.window is not None:
            mixed = self._attended(queries, keys, values, places.valid, places.positions)
        else:
            mixed = attend_source(queries, keys, values, valid=places.valid)
        return project.out(places.from_reader_grid(mixed.transpose(1, 2).flatten(2)))


class CrossAttention(nn.Module):
    """Attention over another sequence: ``write`` the source once, ``read`` it at every step."""

    def __init__(self, width: int, num_heads: int, *, dropout: float = 0.0, out_gain: float = 1.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.projections = Projections(width, num_heads, out_gain)

    def write(self, x: Float[Tensor, "B S D"], valid: Bool[Tensor, "B S"] | None = None) -> KeyValueMemory:
        return self.projections.keys_values(x, valid)

    def read(self, x: Float[Tensor, "B P D"], memory: KeyValueMemory) -> Float[Tensor, "B P D"]:
        mixed = attend_source(
            self.projections.split(self.projections.query(x)),
            memory.keys,
            memory.values,
            valid=memory.valid,
            dropout=self.dropout if self.training else 0.0,
        )
        return self.projections.merge(mixed)
