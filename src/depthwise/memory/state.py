"""The state of decoding: everything that a next step needs, as one value that can be listed, sliced and reordered."""

from dataclasses import dataclass, field

from depthwise.memory.base import Memory
from depthwise.memory.keys_values import KeyValueMemory
from depthwise.shapes import Int, Tensor


@dataclass(frozen=True)
class LayerMemory:
    """What one block keeps: its own past, and the source it attends to (none without an encoder)."""

    past: Memory
    source: KeyValueMemory | None = None

    def keep(self, rows: Int[Tensor, "R"]) -> "LayerMemory":
        return LayerMemory(self.past.keep(rows), None if self.source is None else self.source.keep(rows))


@dataclass(frozen=True)
class DecodeState:
    """Memories of all layers after ``length`` steps. ``num_real`` counts each row's real tokens: its next position."""

    layers: tuple[LayerMemory, ...] = field(default=())
    length: int = 0
    num_real: Int[Tensor, "B"] | None = None

    def keep(self, rows: Int[Tensor, "R"]) -> "DecodeState":
        num_real = None if self.num_real is None else self.num_real.index_select(0, rows)
        return DecodeState(tuple(layer.keep(rows) for layer in self.layers), self.length, num_real)
