"""Average attention."""

import torch
from torch import nn
from torch.nn import functional as F

from depthwise.kernels import running_mean
from depthwise.memory import AverageMemory, Places
from depthwise.mixers.base import Mixer
from depthwise.shapes import Bool, Float, Int, Tensor


class AverageAttention(Mixer):
    """A uniform average, a feed-forward network and two gates (AAN; Zhang et al. 2018).

    a_t = mean of x_1..x_t (of all tokens in an encoder);  g_t = FFN(a_t);
    [i_t; f_t] = sigmoid(W [x_t; g_t]);  y_t = i_t * x_t + f_t * g_t.
    """

    def __init__(self, width: int, ffn_width: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.reach = 0
        self.hidden = nn.Linear(width, ffn_width)
        self.out = nn.Linear(ffn_width, width)
        self.gates = nn.Linear(2 * width, 2 * width)

    def write(self, x: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None = None) -> AverageMemory:
        return AverageMemory(x, valid)

    def read(
        self, x: Float[Tensor, "B P D"], memory: AverageMemory, positions: Int[Tensor, "B P"] | None = None
    ) -> Float[Tensor, "B P D"]:
        mean = running_mean(
            memory.inputs,
            causal=self.causal,
            valid=memory.valid,
            positions=positions,
            num_last=x.shape[1],
            before=memory.before,
        )
        return self._gated(x, mean)

    def mix_packed(self, x: Float[Tensor, "1 N D"], places: Places) -> Float[Tensor, "1 A D"]:
        grid, readers = places.grid(x), places.positions
        mean = running_mean(grid, causal=self.causal, valid=places.valid, positions=readers)
        return self._gated(places.taken(x), places.from_reader_grid(mean))

    def _gated(self, x: Float[Tensor, "B P D"], mean: Float[Tensor, "B P D"]) -> Float[Tensor, "B P D"]:
        context = self.out(F.relu(self.hidden(mean)))
        keep, take = self.gates(torch.cat([x, context], dim=-1)).sigmoid().chunk(2, dim=-1)
        return keep * x + take * context
