"""One block: mixer, attention over a source (decoders that have one), feed-forward; each a gated residual sub-block."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer

from depthwise.config import StackConfig
from depthwise.depth import Gate
from depthwise.errors import ConfigError, Problem
from depthwise.kernels import residual_norm
from depthwise.memory import KeyValueMemory, Memory, Places
from depthwise.mixers import CrossAttention, ScaledLinear, build_mixer, torch_gain
from depthwise.shapes import Bool, Float, Int, Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class Source:
    """Encoder states that a decoder attends to."""

    states: Float[Tensor, "B S D"]
    valid: Bool[Tensor, "B S"] | None = None


class FeedForward(nn.Module):
    """W_2 act(W_1 x + b_1) + b_2."""

    def __init__(self, width: int, config: StackConfig) -> None:
        super().__init__()
        self.activation, self.dropout = ACTIVATIONS[config.activation], config.activation_dropout
        sizes = (width, config.ffn_width), (config.ffn_width, width)
        gains = 1.0, config.gain_of_branches
        if config.ffn_init == "torch":
            gains = torch_gain(*sizes[0]), torch_gain(*sizes[1])
        self.hidden, self.out = (ScaledLinear(*size, gain) for size, gain in zip(sizes, gains, strict=True))

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        hidden = self.activation(self.hidden(x))
        return self.out(F.dropout(hidden, self.dropout) if self.training else hidden)


class Residual(nn.Module):
    """The frame of a sub-block: norm, dropout, residual sum and gate around a branch f.

    pre: x + g f(norm(x));  post: norm(x + f(x)), or x where the gate is closed;  none: x + g f(x).
    A closed gate selects x itself and never multiplies by 0, so that it is a copy even of what is not finite.
    """

    def __init__(self, width: int, config: StackConfig) -> None:
        super().__init__()
        self.placement, self.dropout = config.norm, config.dropout
        self.norm = None if config.norm == "none" else nn.LayerNorm(width, eps=config.norm_epsilon)

    def enter(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """What the branch sees of x."""
        return self._normalized(x, None) if self.placement == "pre" else x

    def leave(
        self, x: Float[Tensor, "B T D"], branch: Float[Tensor, "B T D"], gate: Gate | None
    ) -> Float[Tensor, "B T D"]:
        """x after its branch has been added."""
        weight = None if gate is None else gate.weight
        if self.placement == "post":
            if weight is not None:
                raise ConfigError(
                    "gate", [Problem("norm", 'a soft gate needs norm "pre" or "none"; with "post" use a hard gate')]
                )
            after = self._normalized(x, branch)
        else:
            branch = F.dropout(branch, self.dropout) if self.training else branch
            after = x + branch if weight is None else torch.addcmul(x, branch, _per_token(weight).to(branch.dtype))
        return after if gate is None or gate.run is None else torch.where(_per_token(gate.run), after, x)

    def _normalized(self, x: Tensor, branch: Tensor | None) -> Tensor:
        """The norm of x and, where given, the branch after dropout; in training as one operation.

        A norm that is not as it was made is called: hooks on it hear of it, and what took its place runs.
        """
        norm, dropout = self.norm, self.dropout
        assert norm is not None, "only a placement has a norm"
        if self.training and _is_as_made(norm):
            return residual_norm(x, branch, norm.weight, norm.bias, epsilon=norm.eps, dropout=dropout)
        if branch is not None:
            x = x + (F.dropout(branch, dropout) if self.training else branch)
        normalized: Tensor = norm(x)
        return normalized


class Block(GradientCheckpointingLayer):
    """Mixer, attention over the source, feed-forward.

    ``scale`` is what all branches are multiplied by where connections are those of ReZero, one number that is learned.
    ``write`` and ``read`` are the two halves of adaptive execution: everybody writes, those who run read. ``forward``
    does both for the same positions, computing the norm they share once; in training Transformers may checkpoint it.
    """

    def __init__(self, config: StackConfig, layer: int, *, width: int, causal: bool, has_source: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1)) if config.connections == "rezero" else None
        self.mixer = build_mixer(config, layer, width=width, causal=causal)
        self.mixer_residual = Residual(width, config)
        self.cross: CrossAttention | None = None
        if has_source:
            self.cross = CrossAttention(
                width, config.num_heads, dropout=config.attention_dropout, out_gain=config.gain_of_branches
            )
            self.cross_residual = Residual(width, config)
        self.feed_forward = FeedForward(width, config)
        self.feed_forward_residual = Residual(width, config)

    def write(self, x: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None = None) -> Memory:
        """What these states leave behind for the mixers of other positions."""
        memory: Memory = self.mixer.write(self.mixer_residual.enter(x), valid)
        return memory

    def read(
        self,
        x: Float[Tensor, "B P D"],
        memory: Memory,
        positions: Int[Tensor, "B P"] | None = None,
        *,
        source: KeyValueMemory | None = None,
        gate: Gate | None = None,
    ) -> Float[Tensor, "B P D"]:
        """The states of P positions after this block; ``positions`` as in ``Mixer.read``."""
        gate = self._scaled(gate)
        mixed = self.mixer.read(self.mixer_residual.enter(x), memory, positions)
        return self._upper(self.mixer_residual.leave(x, mixed, gate), source, gate)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        valid: Bool[Tensor, "B T"] | None = None,
        past: Memory | None = None,
        source: KeyValueMemory | Source | None = None,
        gate: Gate | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Memory]:
        """The states after this block, and the memory that they read: ``past`` followed by their own.

        A source that was not written yet (``write_source``) is written here, within what is sharded and checkpointed.
        """
        if gate is not None and gate.whole:
            return self._weighed(x, gate, valid, past, source)
        gate = self._scaled(gate)
        mixed, memory = self.mixer.write_and_read(self.mixer_residual.enter(x), valid, past)
        x = self.mixer_residual.leave(x, mixed, gate)
        return self._upper(x, self.write_source(source) if isinstance(source, Source) else source, gate), memory

    def _weighed(
        self, x: Tensor, gate: Gate, valid: Tensor | None, past: Memory | None, source: KeyValueMemory | Source | None
    ) -> tuple[Float[Tensor, "B T D"], Memory]:
        """x and a share of what the whole block adds to it."""
        after, memory = self.forward(x, valid=valid, past=past, source=source, gate=Gate(gate.run))
        if gate.weight is None:
            return after, memory
        return x + (after - x) * _per_token(gate.weight).to(x.dtype), memory

    def run_packed(
        self, x: Float[Tensor, "1 N D"], places: Places, weight: Float[Tensor, "1 A"] | None = None
    ) -> Float[Tensor, "1 A D"]:
        """The states of those who read after this block of an encoder, of tokens in one long row (see ``Places``)."""
        gate = self._scaled(None if weight is None else Gate(weight=weight))
        mixed = self.mixer.mix_packed(self.mixer_residual.enter(x), places)
        return self._upper(self.mixer_residual.leave(places.taken(x), mixed, gate), None, gate)

    def write_source(self, source: Source) -> KeyValueMemory | None:
        """Keys and values of encoder states; none where the block does not attend to any."""
        return None if self.cross is None else self.cross.write(source.states, source.valid)

    def _scaled(self, gate: Gate | None) -> Gate | None:
        """The gate times the learned scale of the block, where it has one."""
        if self.scale is None:
            return gate
        gate = gate or Gate()
        return replace(gate, weight=self.scale if gate.weight is None else gate.weight * self.scale)

    def _upper(self, x: Tensor, source: KeyValueMemory | None, gate: Gate | None) -> Tensor:
        if self.cross is not None:
            assert source is not None, "a block with attention over a source was given none"
            x = self.cross_residual.leave(x, self.cross.read(self.cross_residual.enter(x), source), gate)
        return self.feed_forward_residual.leave(x, self.feed_forward(self.feed_forward_residual.enter(x)), gate)


def _is_as_made(norm: nn.Module) -> bool:
    """Whether it is a layer norm with weight and bias that nobody put hooks on or another module in place of."""
    hooks = (norm._forward_hooks, norm._forward_pre_hooks, norm._backward_hooks, norm._backward_pre_hooks)
    return type(norm) is nn.LayerNorm and not any(hooks) and norm.elementwise_affine and norm.bias is not None


def _per_token(gate: Tensor) -> Tensor:
    """A gate for all, per row or per token, ready to meet (B, T, D); one that is ready already stays as it is."""
    return gate if gate.dim() in (0, 3) else gate.view(*gate.shape, *(1,) * (3 - gate.dim()))
