"""A stack of blocks. It knows no policy: it runs a layer, or all of them under given gates."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from depthwise.config import StackConfig
from depthwise.depth import Gate
from depthwise.memory import DecodeState, KeyValueMemory, LayerMemory, Memory
from depthwise.models.block import Block, Source
from depthwise.shapes import Bool, Float, Tensor

__all__ = ["Source", "Stack", "StackOutput"]


@dataclass(frozen=True)
class StackOutput:
    """``final`` is the state after all blocks and the last norm. ``hidden_by_depth[n]`` is the state after n blocks.

    Index 0 is the embedding. The states in between are kept on request only; ``memories`` are those of decoding.
    """

    final: Float[Tensor, "B T D"]
    hidden_by_depth: tuple[Float[Tensor, "B T D"], ...] | None = None
    memories: tuple[LayerMemory, ...] | None = None


class Stack(nn.Module):
    """N layers and, where the options ask for it, a last norm.

    ``layers`` holds the blocks: one for each layer, or fewer where layers share them.
    """

    def __init__(self, config: StackConfig, *, width: int, causal: bool, has_source: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Block(config, layer, width=width, causal=causal, has_source=has_source) for layer in _first_uses(config)
        )
        self.block_of = None if config.shared_layers is None else [*map(config.block_of, range(config.num_layers))]
        self.final_norm = nn.LayerNorm(width, eps=config.norm_epsilon) if config.has_final_norm else None

    @property
    def num_layers(self) -> int:
        return len(self.layers if self.block_of is None else self.block_of)

    def block(self, layer: int) -> Block:
        block = self.layers[layer if self.block_of is None else self.block_of[layer]]
        assert isinstance(block, Block)
        return block

    def run_layer(
        self,
        layer: int,
        x: Float[Tensor, "B T D"],
        *,
        valid: Bool[Tensor, "B T"] | None = None,
        past: Memory | None = None,
        source: KeyValueMemory | Source | None = None,
        gate: Gate | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Memory]:
        """One block for all positions: their states after it, and the memory they read (see ``Block.forward``)."""
        return self.block(layer)(x, valid=valid, past=past, source=source, gate=gate)

    def run_all(
        self,
        x: Float[Tensor, "B T D"],
        gates: Sequence[Gate | None] | None = None,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
        source: Source | None = None,
        state: DecodeState | None = None,
        num_layers: int | None = None,
        keep_hidden: bool = False,
    ) -> StackOutput:
        """All layers in order, or the first ``len(gates)`` of them; later ones leave the states as they are.

        ``num_layers`` cuts the stack there, as if later layers did not exist. With a ``state`` these are the next steps
        of decoding: earlier memories are read and new ones returned. Layers beyond the last gate then still write, so
        that deeper steps to come find the copied states there.
        """
        limit = self.num_layers if num_layers is None else num_layers
        hidden, memories = [x], []
        for layer in range(limit):
            block, runs = self.block(layer), gates is None or layer < len(gates)
            if not runs and state is None:
                break
            earlier = state.memories[layer] if state is not None and state.memories else None
            past = None if earlier is None else earlier.past
            written = _written(block, source, earlier) if state is not None else None
            if runs:
                gate = None if gates is None else gates[layer]
                x, memory = self.run_layer(
                    layer, x, valid=valid, past=past, source=source if written is None else written, gate=gate
                )
            else:
                memory = block.write(x, valid) if past is None else past.append(block.write(x, valid))
            if state is not None:
                kept = memory if state.remembers_all else block.mixer.forget(memory)
                memories.append(LayerMemory(kept, written))
            if keep_hidden:
                hidden.append(x)
        copies = [x] * (limit + 1 - len(hidden))
        return StackOutput(
            self.normalized(x),
            (*hidden, *copies) if keep_hidden else None,
            tuple(memories) if state is not None else None,
        )

    def normalized(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """A state as heads see it: after the last norm, where there is one."""
        return x if self.final_norm is None else self.final_norm(x)


def _first_uses(config: StackConfig) -> list[int]:
    """The layer in which each block first runs, which says how it is built; layers that share agree on that."""
    blocks = [config.block_of(layer) for layer in range(config.num_layers)]
    return [blocks.index(block) for block in dict.fromkeys(blocks)]


def _written(block: Block, source: Source | None, earlier: LayerMemory | None) -> KeyValueMemory | None:
    """The source as this block has it in its memory, written at the first step."""
    if earlier is not None:
        return earlier.source
    return None if source is None else block.write_source(source)
