"""Dense connections: every layer reads a learned combination of all that was before it."""

import torch
from torch import nn

from depthwise.shapes import Float, Tensor


class DenseConnections(nn.Module):
    """x_l = Σ_{k≤l} w_{l,k}·norm_k(y_k), with y_0 the embedding, y_k the output of block k and x_l what comes next.

    Wang et al. (2019), "Learning Deep Transformer Models for Machine Translation", section 4, for pre-norm stacks. What
    comes behind the last block is combined in the same way. Weights start as those of a mean, 1/(l + 1).
    """

    def __init__(self, num_layers: int, width: int, epsilon: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=epsilon) for _ in range(num_layers + 1))
        means = [torch.full((number,), 1 / number) for number in range(1, num_layers + 2)]
        self.weights = nn.ParameterList(map(nn.Parameter, means))

    def begin(self) -> "Outputs":
        """Nothing was before the first layer of a pass."""
        return Outputs(self)


class Outputs:
    """All that came out of blocks in one pass, normalised."""

    def __init__(self, connections: DenseConnections) -> None:
        self._connections = connections
        self._states: list[Tensor] = []

    def after(self, y: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """What the next block reads, behind another one that gave y."""
        layer = len(self._states)
        self._states.append(self._connections.norms[layer](y))
        weights: Tensor = self._connections.weights[layer]
        return torch.tensordot(weights.to(y.dtype), torch.stack(self._states), dims=1)
