"""From the states of all tokens to one vector for the sequence."""

import torch
from torch import nn

from depthwise.shapes import Bool, Float, Tensor


class Pooler(nn.Linear):
    """tanh(W h + b) of the first real token (Devlin et al. 2019). It is the encoder's: both are trained together."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)

    def forward(self, hidden: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "B D"]:
        return torch.tanh(super().forward(first_token(hidden, valid)))


def max_and_mean(hidden: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B _e"]:
    """ReLU of the maximum and the mean over real tokens, side by side."""
    if valid is None:
        return torch.cat([hidden.amax(1), hidden.mean(1)], dim=-1).relu()
    padding = ~valid.unsqueeze(-1)
    highest = hidden.masked_fill(padding, torch.finfo(hidden.dtype).min).amax(1)
    mean = hidden.masked_fill(padding, 0).sum(1) / valid.sum(1, keepdim=True).clamp(min=1)
    return torch.cat([highest, mean], dim=-1).relu()


def first_token(hidden: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B D"]:
    """The state of the first real token."""
    if valid is None:
        return hidden[:, 0]
    first = valid.int().argmax(1).view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
    return hidden.gather(1, first).squeeze(1)
