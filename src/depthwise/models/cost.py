"""What a model costs in floating-point operations, by arithmetic on its options (multiply-add = 2).

Per position, with width d, C convolution channels, kernel width k, H kernel heads, f = ffn_width and m positions seen:

| part | matrix products | sums over taps |
|---|---|---|
| self-attention | 8 d a + 4 m a, a = d unless heads were pruned: the width of those that are left | |
| each term of relative positions | 4 m a | |
| LightConv | 4 d C (6 d C with GLU) | 2 k C |
| DynamicConv | the same + 2 C H k | 2 k C |
| full convolution | 2 k d^2 | |
| average attention | 4 d f + 8 d^2 | 2 d |
| attention over S source states | 4 d^2 + 4 S d, and 4 S d^2 once per sequence | |
| feed-forward | 4 d f | |
| head | 2 d V, or 2 d e + 2 e V behind a dense layer of width e | |
| embedding of its own width e | 2 d e | |

Layers that share a block cost as much as others. What a classifier does once per sequence is not counted.

A position that has left still writes for those who run: 4 d^2 per skipped block of attention, the in-projection of a
convolution. Norms, activations, softmax and embedding look-ups are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from depthwise.config import ModelConfig, StackConfig


@dataclass(frozen=True)
class Cost:
    """Operations in matrix products, and in sums over taps or averages."""

    products: int = 0
    taps: int = 0

    @property
    def flops(self) -> int:
        return self.products + self.taps

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.products + other.products, self.taps + other.taps)

    def __mul__(self, times: int) -> "Cost":
        return Cost(self.products * times, self.taps * times)


@dataclass(frozen=True)
class StackCost:
    """Costs of one stack, per position unless said otherwise."""

    stack: StackConfig
    width: int
    has_source: bool = False

    def write(self, layer: int) -> Cost:
        """What a position pays to be seen by others."""
        match self.stack.mixer:
            case "attention":
                return Cost(4 * self.width * self._attended(layer))
            case "cnn" | "average":
                return Cost()
            case _:
                return Cost(2 * self.width * self._channels * (2 if self.stack.glu else 1))

    def read(self, layer: int, seen: int) -> Cost:
        """What a position pays to take from ``seen`` others."""
        width, channels, taps = self.width, self._channels, self.stack.kernel_size(layer) or 0
        match self.stack.mixer:
            case "attention":
                terms = 1 if self.stack.relative is None else self.stack.relative.num_terms
                return Cost(4 * (width + seen * terms) * self._attended(layer))
            case "average":
                return Cost(4 * width * self.stack.ffn_width + 8 * width**2, 2 * width)
            case "cnn":
                return Cost(2 * taps * width**2)
            case "dynamicconv":
                features = width if self.stack.kernel_from == "layer_input" else channels
                heads = self.stack.kernel_heads or self.stack.num_heads
                return Cost(2 * features * heads * taps + 2 * channels * width, 2 * taps * channels)
            case _:
                return Cost(2 * channels * width, 2 * taps * channels)

    def mixer(self, layer: int, seen: int) -> Cost:
        return self.write(layer) + self.read(layer, seen)

    def cross(self, source_length: int) -> Cost:
        """Attention over the source, without writing it."""
        return Cost(4 * self.width**2 + 4 * source_length * self.width) if self.has_source else Cost()

    def source(self, source_length: int) -> Cost:
        """Keys and values of the source for one block, once per sequence."""
        return Cost(4 * source_length * self.width**2) if self.has_source else Cost()

    def feed_forward(self) -> Cost:
        return Cost(4 * self.width * self.stack.ffn_width)

    def block(self, layer: int, seen: int, source_length: int = 0) -> Cost:
        return self.mixer(layer, seen) + self.cross(source_length) + self.feed_forward()

    def forward(self, length: int, source_length: int = 0) -> Cost:
        """All blocks for a whole sequence at once."""
        return self.plan([self.stack.num_layers] * length, source_length)

    def plan(self, depths: Sequence[int], source_length: int = 0) -> Cost:
        """A whole sequence at once, token t running its first ``depths[t]`` blocks.

        Every pair of positions is scored, also those that a causal mask then hides. While any token runs a block, those
        that have left are written for it; once none does, nothing more is computed.
        """
        length, total = len(depths), Cost()
        for layer in range(self.stack.num_layers):
            running = sum(depth > layer for depth in depths)
            if running:
                total += self.block(layer, length, source_length) * running + self.write(layer) * (length - running)
                total += self.source(source_length)
        return total

    def decode(self, depths: Sequence[int], source_length: int = 0, num_layers: int | None = None) -> Cost:
        """One step after the other, step t running its first ``depths[t]`` blocks and written by all later ones.

        ``num_layers`` is for where no step runs deeper, and nothing is written above.
        """
        total = self.source(source_length) * (self.stack.num_layers if num_layers is None else num_layers)
        for step, depth in enumerate(depths, start=1):
            total += self.step(step, depth, source_length, num_layers)
        return total

    def step(self, number: int, depth: int, source_length: int = 0, num_layers: int | None = None) -> Cost:
        """One step of these, counted from 1."""
        total = Cost()
        for layer in range(self.stack.num_layers if num_layers is None else num_layers):
            window = self.stack.kernel_size(layer) if self.stack.mixer == "attention" else None
            seen = number if window is None else min(number, window)
            total += self.block(layer, seen, source_length) if layer < depth else self.write(layer)
        return total

    def _attended(self, layer: int) -> int:
        """The width of all heads of a layer together."""
        return self.width // self.stack.num_heads * self.stack.heads_of(layer)

    @property
    def _channels(self) -> int:
        return self.stack.conv_width or self.width


@dataclass(frozen=True)
class ModelCost:
    """Costs of a whole model; a side that it lacks costs nothing."""

    options: ModelConfig

    @property
    def encoder(self) -> StackCost | None:
        return None if self.options.encoder is None else StackCost(self.options.encoder, self.options.width)

    @property
    def decoder(self) -> StackCost | None:
        if self.options.decoder is None:
            return None
        return StackCost(self.options.decoder, self.options.width, has_source=self.options.encoder is not None)

    def embedding(self) -> Cost:
        """Products of one embedded token: none, but for the projections of adaptive bands or of a width of its own."""
        own = 0 if self.options.embedding_width is None else 2 * self.options.embedding_width * self.options.width
        return Cost(own + sum(2 * width * self.options.width for width, _ in self._bands()))

    def head(self) -> Cost:
        """Scores of the whole vocabulary for one token."""
        width = self.options.width
        if self.options.adaptive is None:
            scored = self.options.embedding_width or width
            is_plain = self.options.embedding_width is None and self.options.head_transform is None
            return Cost(2 * scored * self.options.vocab_size + (0 if is_plain else 2 * width * scored))
        (_, first), *rest = self._bands()
        tails = sum(2 * band_width * (width + size) for band_width, size in rest)
        return Cost(2 * width * (first + len(rest)) + tails)

    def forward(self, length: int, source_length: int = 0) -> Cost:
        """Teacher-forced: all of a sequence at once, with the scores of every step where there is a decoder."""
        if self.decoder is None:
            return self._encoded(length)
        steps = (self.embedding() + self.head()) * length
        return self._encoded(source_length) + self.decoder.forward(length, source_length) + steps

    def decode(self, depths: Sequence[int], source_length: int = 0, num_layers: int | None = None) -> Cost:
        """Step by step under given depths, with the scores of every step; ``num_layers`` as for a stack."""
        assert self.decoder is not None, "only a decoder decodes"
        steps = (self.embedding() + self.head()) * len(depths)
        return self._encoded(source_length) + self.decoder.decode(depths, source_length, num_layers) + steps

    def _encoded(self, length: int) -> Cost:
        return Cost() if self.encoder is None else self.encoder.forward(length) + self.embedding() * length

    def _bands(self) -> list[tuple[int, int]]:
        """Width and size of each adaptive band; none without them."""
        adaptive = self.options.adaptive
        if adaptive is None:
            return []
        bounds = [0, *adaptive.cutoffs, self.options.vocab_size]
        sizes = [end - start for start, end in pairwise(bounds)]
        return [(self.options.width // adaptive.factor**band, size) for band, size in enumerate(sizes)]
