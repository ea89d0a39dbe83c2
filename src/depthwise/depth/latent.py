"""Gates on the layers of a stack that are learned with it, and by which layers are then left out.

    z = σ((α + g₁ − g₂)/τ),    g ~ Gumbel(0, 1),    P(z > ½) = σ(α) for every τ        (Li et al. 2020, section 2)

Ours -> symbols: ``logits`` -> α, ``temperature`` -> τ, ``noise`` -> g₁ − g₂, which is logistic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from depthwise.config.latent import LatentConfig
from depthwise.depth.plan import Gate, Plan
from depthwise.errors import InputError
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class LatentGates:
    """The gates of all layers for one pass: for all rows ``(N,)`` or for each ``(N, B)``.

    ``weight`` are soft gates or samples, ``run`` hard gates; one of them is there. ``whole`` as in ``Gate``.
    """

    weight: Float[Tensor, "N *rows"] | None = None
    run: Bool[Tensor, "N *rows"] | None = None
    whole: bool = False

    def gate(self, layer: int) -> Gate:
        """The gate of one layer."""
        if self.run is not None:
            return Gate(self.run[layer])
        assert self.weight is not None
        return Gate(weight=self.weight[layer], whole=self.whole)

    def depths(self, num_layers: int) -> Int[Tensor, "*rows"] | int:
        """How many of the first layers run: those whose gate is open, where gates are hard, and else all."""
        return num_layers if self.run is None else self.run[:num_layers].sum(0)

    def plan(self, num_layers: int, num_rows: int, num_steps: int) -> Plan:
        """The same for every token, of the first layers."""

        def each(gates: Tensor) -> Tensor:
            return gates[:num_layers].reshape(num_layers, -1, 1).expand(-1, num_rows, num_steps)

        if self.run is not None:
            return Plan(each(self.run))
        assert self.weight is not None
        return Plan(each(torch.ones_like(self.weight, dtype=torch.bool)), each(self.weight))


@dataclass(frozen=True)
class Drawn:
    """What gates were in one pass of training, with gradients that lead to their logits: of all languages."""

    logits: Float[Tensor, "G N"]
    samples: Float[Tensor, "G N"]

    @property
    def probabilities(self) -> Float[Tensor, "G N"]:
        return self.logits.sigmoid()


class LatentLayers(nn.Module):
    """The logits of the gates of one stack: one for each layer, or for each layer and language.

    In training every pass draws a sample for each language, soft or (``hardness`` 1) straight through. The noise is
    ``noise`` where somebody has put some there, so that processes draw alike and recorded passes find it in its place;
    ``drawn`` keeps what the last pass made of it: logits of sharded models are whole while these run, and at no other
    time. Outside training nothing is drawn, unless ``mode`` is ``sampled``.
    ``temperature`` and ``hardness`` are kept with the weights, since a soft gate is the mean of what was trained with.
    """

    temperature: Tensor
    hardness: Tensor

    def __init__(self, options: LatentConfig, num_layers: int, side: str) -> None:
        super().__init__()
        self.options, self.side = options, side
        self.languages = options.languages(side)
        self.logits = nn.Parameter(torch.full((max(1, len(self.languages)), num_layers), options.first_logit(side)))
        self.register_buffer("temperature", torch.tensor(float(options.temperature)))
        self.register_buffer("hardness", torch.tensor(0.0))
        self.mode = options.gates
        self.noise: Tensor | None = None
        self.drawn: Drawn | None = None
        self._generator: torch.Generator | None = None
        self._seed = 0

    def __getstate__(self) -> dict[str, Any]:
        """Copies have no pass behind them: ``drawn`` leads to its graph, which cannot be copied."""
        return {**self.__dict__, "drawn": None}

    def use(self, mode: str, seed: int = 0) -> None:
        """From now on, outside training, ``soft``, ``hard`` or ``sampled`` gates, these from a seed."""
        self.mode, self._seed = mode, seed
        self._generator = None
        if mode == "sampled":
            self._generator = torch.Generator(self.logits.device).manual_seed(seed)

    def whole_logits(self) -> Float[Tensor, "_g N"]:
        """α of all languages; where processes share them out, they put them together here."""
        logits: Tensor = self.logits
        return logits.full_tensor() if isinstance(logits, DTensor) else logits

    @property
    def probabilities(self) -> Float[Tensor, "_g N"]:
        """σ(α) of all languages."""
        return self.whole_logits().sigmoid()

    @property
    def is_open(self) -> Bool[Tensor, "_g N"]:
        """The layers that each language uses: those with a probability above one half."""
        return self.whole_logits() > 0

    def samples(self, noise: Float[Tensor, "_g N"]) -> Float[Tensor, "_g N"]:
        """z of all languages; where it is hard, it has the gradient of the soft one."""
        logits = self.whole_logits()
        soft = ((logits + noise.to(logits.dtype)) / self.temperature).sigmoid()
        hard = (soft > 0.5).to(soft.dtype) + (soft - soft.detach())
        return torch.where(self.hardness > 0.5, hard, soft)

    def expected(self) -> Float[Tensor, "_g N"]:
        """The mean of the samples that these gates were trained with: σ(α) of hard ones."""
        soft = expected_sample(self.logits, self.temperature)
        return torch.where(self.hardness > 0.5, self.probabilities, soft)

    def forward(self, languages: Int[Tensor, "B"] | None, num_rows: int) -> LatentGates:
        """The gates of a pass over rows in these languages, numbered as in ``languages``."""
        rows = self.rows_of(languages, num_rows)
        whole = self.options.whole_layer
        if self.training:
            noise = self.noise
            if noise is None:
                noise = logistic_noise(self.logits.shape, device=self.logits.device)
            self.drawn = Drawn(self.logits * 1, self.samples(noise))
            return LatentGates(weight=_by_row(self.drawn.samples, rows), whole=whole)
        if self.mode == "hard":
            return LatentGates(run=_by_row(self.is_open, rows))
        if self.mode == "soft":
            return LatentGates(weight=_by_row(self.expected(), rows), whole=whole)
        if self._generator is None or self._generator.device != self.logits.device:
            self.use(self.mode, self._seed)
        noise = logistic_noise(self.logits.shape, device=self.logits.device, generator=self._generator)
        return LatentGates(weight=_by_row(self.samples(noise), rows), whole=whole)

    def rows_of(self, languages: Int[Tensor, "B"] | None, num_rows: int) -> Int[Tensor, "B"] | None:
        """The number of each row's language; none where all have the same gates."""
        if len(self.languages) <= 1:
            return None
        name = f"{'source' if self.side == 'encoder' else 'target'}_languages"
        known = ", ".join(self.languages)
        if languages is None:
            raise InputError(f"{name} is missing; the gates of the {self.side} differ between {known}: number each row")
        if languages.shape != (num_rows,):
            raise InputError(f"{name} has shape {tuple(languages.shape)}; give one number for each of {num_rows} rows")
        if languages.device.type == "cpu" and bool(((languages < 0) | (languages >= len(self.languages))).any()):
            raise InputError(f"{name} holds a number of no language; 0 to {len(self.languages) - 1} stand for {known}")
        return languages


def logistic_noise(
    shape: Sequence[int], *, device: torch.device | str | None = None, generator: torch.Generator | None = None
) -> Float[Tensor, "..."]:
    """g₁ − g₂ of two Gumbel variables: log u − log(1 − u) of a uniform u."""
    return torch.rand(tuple(shape), device=device, generator=generator).logit(1e-7)


def expected_sample(logits: Float[Tensor, "..."], temperature: Float[Tensor, ""] | float) -> Float[Tensor, "..."]:
    """E[σ((α + g₁ − g₂)/τ)] = ∫ σ((α + t)/τ)·σ(t)·(1 − σ(t)) dt.

    The sum over a grid of step 1/8 is exact to more digits than float32 has; beyond ±40 nothing is left of the density.
    """
    grid = torch.arange(-40.0, 40.125, 0.125, dtype=torch.float64, device=logits.device)
    density = grid.sigmoid() * (-grid).sigmoid()
    values = ((logits.double().unsqueeze(-1) + grid) / temperature).sigmoid()
    return ((values * density).sum(-1) / density.sum()).to(logits.dtype)


def _by_row(gates: Tensor, rows: Int[Tensor, "B"] | None) -> Tensor:
    """(G, N) gates of all languages as those of one pass: (N,), or (N, B) by the languages of rows."""
    return gates[0] if rows is None else gates.t().index_select(1, rows)
