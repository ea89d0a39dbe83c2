"""How many layers an input needs, said once by the first layers it runs.

    q = softmax(MLP(s)/τ)        s: what static layers have made of the first token (or of all tokens)
    p_i = Σ_{j ≥ i} q_j          the chance that layer i is needed (RevPC): 1 = p_1 ≥ p_2 ≥ … ≥ p_n
    x + p_i·f(norm(x))           both branches of layer i, in training and after it

Nothing else teaches the predictor: p_i multiplies what the loss depends on. Σ p_i is the expected number of layers.

Source: "From Static to Dynamic: A Dynamic Structure …" (ALBERTa, a poster), as read in ``docs/structure.md``.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from depthwise.config.depth import FixedDepthConfig, StructureExitConfig
from depthwise.config.structure import StructureConfig
from depthwise.depth.fixed import FixedDepth
from depthwise.depth.plan import Gate
from depthwise.depth.policy import Policy
from depthwise.errors import InputError
from depthwise.kernels.weights import at_least_float32
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class RowGates:
    """The gates of M layers for each row: their weights, and how many run, from the first on; none means all."""

    weight: Float[Tensor, "M B"]
    num_run: Int[Tensor, "B"] | None = None

    def gate(self, layer: int) -> Gate:
        """The gate of one of these layers, counted from 0."""
        return Gate(None if self.num_run is None else self.num_run > layer, self.weight[layer])

    @property
    def depths(self) -> Int[Tensor, "B"]:
        """How many of these layers each row runs."""
        if self.num_run is None:
            return torch.full_like(self.weight[0], len(self.weight), dtype=torch.long)
        return self.num_run

    def depths_at(self, threshold: float) -> Int[Tensor, "B"]:
        """How many of these layers each row would run up to the first whose weight is below a threshold."""
        return (self.weight >= threshold).cumprod(0).sum(0)


class StructureExit(Policy):
    """Every input runs the layers whose weight reaches a threshold, up to the first that does not.

        depth = n_static + max{m : p_1 ≥ γ, …, p_m ≥ γ}          ``stops`` threshold
        depth = n_static + argmax_m q_m                          ``stops`` argmax

    Layers that run keep their weight p_i, so that γ = 0 is what was trained.
    Ours -> symbols: threshold -> γ.

    Decides: once, behind the static layers of an encoder, for whole sequences.
    Source: ALBERTa ("From Static to Dynamic"), inference.
    Choose it: where the model was trained with ``structure``. No exits have to be trained and no scores are looked at.
    ``confidence`` and ``patience`` serve models with exits.
    Needs: a model with ``structure``, whose predictor learned with it; no parameters of its own.
    """

    def __init__(self, options: StructureExitConfig) -> None:
        super().__init__()
        self.options = options

    def stops(self, *, cumulative: bool) -> str:
        """What decides: as the options say, or as suits the weights."""
        return self.options.stops or ("threshold" if cumulative else "argmax")


class LayerScores(nn.Linear):
    """A logit for each number of layers; ``last_bias`` is that of the last one in a new model."""

    def __init__(self, width: int, num_numbers: int, last_bias: float) -> None:
        super().__init__(width, num_numbers)
        self.last_bias = last_bias


class StructurePredictor(nn.Module):
    """What static layers say of the layers above them.

    Outside training, ``use`` makes rows stop. ``chances`` are q of the rows of the last pass, and ``expected`` their
    expected depths, static layers included; in training both have gradients.
    """

    def __init__(self, options: StructureConfig, *, width: int, num_layers: int) -> None:
        super().__init__()
        self.options, self.num_static = options, options.num_static
        self.num_adaptive = num_layers - options.num_static
        hidden = options.hidden_width or width
        self.norm = nn.LayerNorm(width) if options.normalized else None
        self.pooler = nn.Linear(width, width) if options.summary == "first_tanh" else None
        self.hidden = nn.Linear(width, hidden)
        self.out = LayerScores(hidden, self.num_adaptive + options.allow_zero, float(options.last_bias))
        self.chances: Tensor | None = None
        self._policy: FixedDepth | StructureExit | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies have run nothing yet; torch could not copy what has gradients either."""
        return {**self.__dict__, "chances": None}

    @property
    def least(self) -> int:
        """The layers that every input runs in training: the static ones, and the first of the others."""
        return self.num_static + (not self.options.allow_zero)

    @property
    def expected(self) -> Float[Tensor, "B"] | None:
        """Worked out when somebody asks: a device that waits for its host does without."""
        if self.chances is None:
            return None
        numbers = torch.arange(self.least, self.least + self.chances.shape[1], device=self.chances.device)
        return (self.chances * numbers).sum(1)  # as a product of matrices it would be rounded by autocast

    @property
    def policy(self) -> FixedDepth | StructureExit | None:
        """By which rows stop, outside training."""
        return self._policy

    def use(self, policy: Policy | None) -> None:
        """From now on, outside training, let rows stop by this policy, or none of them."""
        if policy is not None and not isinstance(policy, FixedDepth | StructureExit):
            raise InputError("this model says by itself how many layers it needs; use the policy structure or fixed")
        least, most = self.num_static, self.num_static + self.num_adaptive
        if isinstance(policy, FixedDepth) and not least <= policy.options.depth <= most:
            raise InputError(f"{policy.options.depth} layers cannot run here; give a depth from {least} to {most}")
        if isinstance(policy, StructureExit) and not 0 <= policy.options.threshold <= 1:
            raise InputError(f"{policy.options.threshold} is no share; give a threshold from 0 to 1")
        object.__setattr__(self, "_policy", policy)  # not a part of the predictor

    def probabilities(self, states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B n"]:
        """q of every number of layers: from 1, or from 0 with ``allow_zero``."""
        summary = _summary(states, valid, self.options.summary)
        summary = summary if self.norm is None else self.norm(summary)
        summary = summary if self.pooler is None else torch.tanh(self.pooler(summary))
        logits = at_least_float32(self.out(F.gelu(self.hidden(summary))))
        return (logits / self.options.temperature).softmax(-1)

    def forward(self, states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None) -> RowGates:
        """The gates of the layers above the static ones, from what these have made of the input."""
        found = self.probabilities(states, valid)
        options = self.options
        if options.cumulative:
            weights = suffix_sums(found, allow_zero=options.allow_zero)
        else:
            weights = found[:, 1:] if options.allow_zero else found
        self.chances = found
        gates = RowGates(weights.t())
        if self.training or self._policy is None:
            return gates
        return replace(gates, num_run=self._num_run(found, gates))

    def _num_run(self, found: Float[Tensor, "B n"], gates: RowGates) -> Int[Tensor, "B"]:
        policy = self._policy
        if isinstance(policy, FixedDepth):
            options: FixedDepthConfig = policy.options
            return torch.full_like(found[:, 0], options.depth - self.num_static, dtype=torch.long)
        assert policy is not None
        if policy.stops(cumulative=self.options.cumulative) == "argmax":
            return found.argmax(1) + (not self.options.allow_zero)
        return gates.depths_at(policy.options.threshold)


def suffix_sums(found: Float[Tensor, "B n"], *, allow_zero: bool = False) -> Float[Tensor, "B M"]:
    """p_i = Σ_{j ≥ i} q_j for the layers i = 1 … M, where q begins at one layer or, with ``allow_zero``, at none.

    The first of all sums is 1, whatever rounding makes of it.
    """
    sums = found[:, 1:].flip(1).cumsum(1).flip(1).clamp(max=1.0)
    return sums if allow_zero else torch.cat([torch.ones_like(found[:, :1]), sums], 1)


def _summary(states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None, kind: str) -> Float[Tensor, "B D"]:
    """One state for each row, by real tokens alone."""
    if kind in ("first", "first_tanh"):
        if valid is None:
            return states[:, 0]
        first = valid.int().argmax(1).view(-1, 1, 1).expand(-1, 1, states.shape[-1])
        return states.gather(1, first).squeeze(1)
    if kind == "max":
        if valid is not None:
            states = states.masked_fill(~valid.unsqueeze(-1), torch.finfo(states.dtype).min)
        return states.amax(1)
    if valid is None:
        return states.mean(1)
    return states.masked_fill(~valid.unsqueeze(-1), 0).sum(1) / valid.sum(1, keepdim=True).clamp(min=1)
