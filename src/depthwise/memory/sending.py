"""What the host has made, where a device needs it, without waiting for that device."""

import torch

from depthwise.shapes import Tensor


def sent(made: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host there. From memory that may be moved, a GPU would copy only once it has nothing else to do,
    and the host would wait for that; so it goes by way of memory that stays."""
    if device.type != "cuda" or made.device.type != "cpu":
        return made.to(device, non_blocking=True)
    return made.pin_memory().to(device, non_blocking=True)
