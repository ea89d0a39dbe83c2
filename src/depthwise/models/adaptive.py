"""Embeddings and softmax in bands: frequent types get wide vectors, rare ones narrow vectors.

Band b covers the types from ``bounds[b]`` to ``bounds[b + 1]`` with vectors of width D / factor^b
(Baevski & Auli 2019 for the input; Grave et al. 2017 for the output). Types must be sorted by falling frequency.
"""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from depthwise.config import AdaptiveConfig
from depthwise.shapes import Float, Int, Tensor


def band_bounds(num_types: int, config: AdaptiveConfig) -> list[int]:
    """Where bands begin, and where the last one ends."""
    return [0, *config.cutoffs, num_types]


class AdaptiveEmbedding(nn.Module):
    """E[id] = P_b T_b[id - bounds_b] for the band b that holds the id: a narrow table, then a projection to width D.

    Every band is computed for every id and one selected: a third more arithmetic than needed, but no shape depends on
    the ids, so that the host never waits for the device.
    """

    def __init__(self, num_types: int, width: int, config: AdaptiveConfig, padding: int | None) -> None:
        super().__init__()
        self.bounds, self.width = band_bounds(num_types, config), width
        widths = [width // config.factor**band for band in range(len(self.bounds) - 1)]
        self.tables = nn.ModuleList(
            nn.Embedding(end - start, band_width, padding_idx=_within(padding, start, end))
            for (start, end), band_width in zip(pairwise(self.bounds), widths, strict=True)
        )
        self.projections = nn.ModuleList(nn.Linear(band_width, width, bias=False) for band_width in widths)

    def forward(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        states: Tensor | float = 0.0
        for band, (start, end) in enumerate(pairwise(self.bounds)):
            here = ((ids >= start) & (ids < end)).unsqueeze(-1)
            vectors = self.projections[band](self.tables[band]((ids - start).clamp(0, end - start - 1)))
            states = torch.where(here, vectors, states)
        assert isinstance(states, Tensor)
        return states


class AdaptiveHead(nn.Module):
    """log p(w) = log p(w | head) in band 0, log p(band b | head) + log p(w | band b) elsewhere.

    The head scores the types of band 0 and one entry per other band; the state is narrowed to the width of every band
    but the first. With tied embeddings the tables are those of the input, with tied projections the narrowing is the
    transposed input projection.
    """

    def __init__(self, num_types: int, width: int, config: AdaptiveConfig) -> None:
        super().__init__()
        self.bounds, self.dropout = band_bounds(num_types, config), config.dropout
        widths = [width // config.factor**band for band in range(len(self.bounds) - 1)]
        sizes = [end - start for start, end in pairwise(self.bounds)]
        self.tables = nn.ModuleList(
            nn.Linear(band_width, size, bias=False) for band_width, size in zip(widths, sizes, strict=True)
        )
        self.bands = nn.Linear(width, len(sizes) - 1, bias=False)
        self.projections = nn.ModuleList(nn.Linear(band_width, width, bias=False) for band_width in widths[1:])

    def log_prob(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Log-probabilities of the whole vocabulary."""
        head = self._head(hidden).log_softmax(-1)
        size = self.bounds[1]
        parts = [head[..., :size]]
        for band in range(1, len(self.tables)):
            parts.append(head[..., size + band - 1].unsqueeze(-1) + self._band(hidden, band).log_softmax(-1))
        return torch.cat(parts, dim=-1)

    def nll(self, hidden: Float[Tensor, "M D"], labels: Int[Tensor, "M"]) -> Float[Tensor, "M"]:
        """Negative log-likelihood of each label; a band is scored only where it occurs."""
        size = self.bounds[1]
        bounds = torch.tensor(self.bounds[1:-1], device=labels.device)
        band_of = torch.bucketize(labels, bounds, right=True)
        entry = torch.where(band_of == 0, labels, size + band_of - 1)
        loss = -self._head(hidden).log_softmax(-1).gather(1, entry.unsqueeze(1)).squeeze(1)
        for band in range(1, len(self.tables)):
            here = (band_of == band).nonzero().squeeze(1)
            within = self._band(hidden[here], band).log_softmax(-1)
            target = (labels[here] - self.bounds[band]).unsqueeze(1)
            loss = loss.index_add(0, here, -within.gather(1, target).squeeze(1))
        return loss

    def top(self, hidden: Float[Tensor, "... D"], count: int) -> tuple[Float[Tensor, "... k"], Int[Tensor, "... k"]]:
        """The most probable types and their log-probabilities."""
        return self.log_prob(hidden).topk(count, dim=-1)

    def forward(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Scores of the whole vocabulary; here they are log-probabilities already."""
        return self.log_prob(hidden)

    def _head(self, hidden: Tensor) -> Tensor:
        return precise(torch.cat([self.tables[0](hidden), self.bands(hidden)], dim=-1))

    def _band(self, hidden: Tensor, band: int) -> Tensor:
        projection = self.projections[band - 1]
        assert isinstance(projection, nn.Linear)
        narrow = F.linear(hidden, projection.weight.t())
        return precise(self.tables[band](F.dropout(narrow, self.dropout, self.training)))


def _within(padding: int | None, start: int, end: int) -> int | None:
    """The padding id as counted within a band, where the band holds it."""
    return padding - start if padding is not None and start <= padding < end else None


def precise(scores: Tensor) -> Tensor:
    """Scores in float32 at least, as a softmax over many types needs them."""
    return scores if scores.dtype == torch.float64 else scores.float()
