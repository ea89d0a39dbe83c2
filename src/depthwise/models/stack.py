"""A stack of blocks. It knows no policy: it runs a layer, or all of them under given gates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from depthwise.config import StackConfig
from depthwise.depth import Gate
from depthwise.memory import DecodeState, KeyValueMemory, LayerMemory, Memory
from depthwise.mixers import Distances, SelfAttention
from depthwise.models.block import Block, Source
from depthwise.models.dense import DenseConnections
from depthwise.models.scaled_gradients import run_scaled
from depthwise.shapes import Bool, Float, Int, Tensor

__all__ = ["Gates", "Source", "Stack", "StackOutput"]

Gates = Callable[[int, Tensor], Gate | bool]
"""From a layer and the states before it to its gate. True opens it for all; false closes it and all above it."""


@dataclass(frozen=True)
class StackOutput:
    """``last`` is the state after all blocks, ``final`` the same after the last norm.

    ``hidden_by_depth[n]`` is the state after n blocks, index 0 the embedding; those in between are kept on request
    only. ``memories`` are those of decoding.
    """

    last: Float[Tensor, "B T D"]
    final: Float[Tensor, "B T D"]
    hidden_by_depth: tuple[Float[Tensor, "B T D"], ...] | None = None
    memories: tuple[LayerMemory, ...] | None = None


class Stack(nn.Module):
    """N layers and, where the options ask for it, a last norm.

    ``layers`` holds the blocks: one for each layer, or fewer where layers share them. Where there is a last norm, the
    depths ``own_norms`` have another one for those who leave there.
    """

    def __init__(
        self, config: StackConfig, *, width: int, causal: bool, has_source: bool = False, own_norms: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Block(config, layer, width=width, causal=causal, has_source=has_source) for layer in _first_uses(config)
        )
        self.block_of = [*map(config.block_of, range(config.num_layers))] if config.has_shared_layers else None
        self.distances: Distances | None = None
        if config.relative is not None:
            self.distances = Distances(config.relative, width // config.num_heads)
            for block in self.layers:
                assert isinstance(block, Block)
                assert isinstance(block.mixer, SelfAttention)
                block.mixer.look_up(self.distances)
        self.layer_dropout = config.layer_dropout
        self.dense: DenseConnections | None = None
        if config.connections == "dense":
            self.dense = DenseConnections(config.num_layers, width, config.norm_epsilon)
        self.final_norm = nn.LayerNorm(width, eps=config.norm_epsilon) if config.has_final_norm else None
        self.exit_norms = nn.ModuleDict()
        if config.has_final_norm:
            for depth in own_norms:
                self.exit_norms[str(depth)] = nn.LayerNorm(width, eps=config.norm_epsilon)

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
        gates: Gates | None = None,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
        source: Source | None = None,
        state: DecodeState | None = None,
        num_layers: int | None = None,
        keep_hidden: bool = False,
        own_factors: Sequence[float] | None = None,
    ) -> StackOutput:
        """All layers in order, under the gates that are asked for just before each; closed ones leave states alone.

        ``num_layers`` cuts the stack there, as if later layers did not exist. With a ``state`` these are the next steps
        of decoding: earlier memories are read and new ones returned. Layers that are closed for all then still write,
        so that deeper steps to come find the copied states there. ``own_factors`` scale what the parameters of each
        block learn from its own exit, that is from the states that are kept of it (``scaled_gradients``).
        """
        limit = self.num_layers if num_layers is None else num_layers
        if self.training and self.layer_dropout:
            gates = self._with_dropout(gates, x)
        before = None if self.dense is None else self.dense.begin()
        x = x if before is None else before.after(x)
        hidden, memories = [x], []
        gate: Gate | bool = True
        for layer in range(limit):
            block = self.block(layer)
            if gates is not None and gate is not False:
                gate = gates(layer, x)
            if gate is False and state is None:
                break
            earlier = state.memories[layer] if state is not None and state.memories else None
            past = None if earlier is None else earlier.past
            written = _written(block, source, earlier) if state is not None else None
            kept_state: Tensor | None = None
            if gate is not False and own_factors is not None and torch.is_grad_enabled():
                assert state is None
                given = gate if isinstance(gate, Gate) else None
                x, kept_state = self._run_scaled(layer, x, own_factors[layer], valid, source, given)
            elif gate is not False:
                given = gate if isinstance(gate, Gate) else None
                x, memory = self.run_layer(
                    layer, x, valid=valid, past=past, source=source if written is None else written, gate=given
                )
            else:
                memory = block.write(x, valid) if past is None else past.append(block.write(x, valid))
            x = x if before is None else before.after(x)
            if state is not None:
                kept = memory if state.remembers_all else block.mixer.forget(memory)
                memories.append(LayerMemory(kept, written))
            if keep_hidden:
                hidden.append(x if kept_state is None else kept_state)
        copies = [x] * (limit + 1 - len(hidden))
        return StackOutput(
            x,
            self.normalized(x),
            (*hidden, *copies) if keep_hidden else None,
            tuple(memories) if state is not None else None,
        )

    def _with_dropout(self, gates: Gates | None, x: Tensor) -> Gates:
        """The same gates, of which some are closed for this pass (LayerDrop)."""
        kept = torch.rand(self.num_layers, device=x.device) >= self.layer_dropout

        def drawn(layer: int, x: Tensor) -> Gate | bool:
            gate = True if gates is None else gates(layer, x)
            if not isinstance(gate, Gate):
                return Gate(kept[layer]) if gate else False
            return replace(gate, run=kept[layer] if gate.run is None else gate.run & kept[layer])

        return drawn

    def _run_scaled(
        self, layer: int, x: Tensor, factor: float, valid: Tensor | None, source: Source | None, gate: Gate | None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"]]:
        """One block twice: its states for those above, and for its own exit."""

        def run(x: Tensor, read: Tensor | None = None) -> Tensor:
            given = None if source is None or read is None else Source(read, source.valid)
            return self.run_layer(layer, x, valid=valid, source=given, gate=gate)[0]

        params = [param for param in self.block(layer).parameters() if param.requires_grad]
        return run_scaled(run, [x] if source is None else [x, source.states], params, factor)

    def normalized(self, x: Float[Tensor, "B T D"], depth: int | None = None) -> Float[Tensor, "B T D"]:
        """States as the head at this depth, else at the end, sees them: after its norm, where there is one."""
        if depth is not None and str(depth) in self.exit_norms:
            norm = self.exit_norms[str(depth)]
            return norm(x)
        return x if self.final_norm is None else self.final_norm(x)

    def normalized_each(self, x: Float[Tensor, "B T D"], depths: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """States of tokens that came this deep, as the head where each left sees them."""
        seen = self.normalized(x)
        for depth in map(int, self.exit_norms):
            seen = torch.where((depths == depth).unsqueeze(-1), self.normalized(x, depth), seen)
        return seen


def _first_uses(config: StackConfig) -> list[int]:
    """The layer in which each block first runs, which says how it is built; layers that share agree on that."""
    blocks = [config.block_of(layer) for layer in range(config.num_layers)]
    return [blocks.index(block) for block in dict.fromkeys(blocks)]


def _written(block: Block, source: Source | None, earlier: LayerMemory | None) -> KeyValueMemory | None:
    """The source as this block has it in its memory, written at the first step."""
    if earlier is not None:
        return earlier.source
    return None if source is None else block.write_source(source)
