"""What the host has made, where a device needs it, without waiting for that device.

Nor for threads of its own: torch shares a copy of some ten thousand numbers out among all of them, which takes
microseconds where each has a core to itself, and milliseconds where one has to wait for its turn. NumPy copies alone.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from depthwise.shapes import Tensor

ALIGNMENT = 16
"""Numbers after which each of several lists begins that are sent together: kernels are compiled for such addresses."""


def sent(made: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host there. From memory that may be moved, a GPU would copy only once it has nothing else to do,
    and the host would wait for that; so it goes by way of memory that stays."""
    if device.type != "cuda" or made.device.type != "cpu":
        return made.to(device, non_blocking=True)
    return staged(made).to(device, non_blocking=True)


def staged(made: Tensor) -> Tensor:
    """The same in memory that stays."""
    if made.dtype == torch.bfloat16:  # which NumPy does not know
        return made.pin_memory()
    there = torch.empty(made.shape, dtype=made.dtype, pin_memory=True)
    there.numpy()[...] = made.detach().numpy()
    return there


def send_into(table: Tensor, made: npt.NDArray[Any]) -> None:
    """The same into a tensor that is there already."""
    host = torch.from_numpy(made)
    table.copy_(staged(host) if table.device.type == "cuda" else host, non_blocking=True)


def sent_together(lists: Sequence[npt.NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """Several lists of numbers there; a GPU is sent all of them at once."""
    if device.type == "cpu":
        return [torch.from_numpy(each) for each in lists]
    places = np.cumsum([0, *(-(-len(each) // ALIGNMENT) * ALIGNMENT for each in lists)])
    joined = np.zeros(places[-1], dtype=np.int64)
    for place, each in zip(places, lists, strict=False):
        joined[place : place + len(each)] = each
    there = sent(torch.from_numpy(joined), device)
    return [there[place : place + len(each)] for place, each in zip(places.tolist(), lists, strict=False)]
