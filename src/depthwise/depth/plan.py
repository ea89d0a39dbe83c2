"""Which blocks run for which token, decided before the stack runs."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from depthwise.errors import InputError
from depthwise.memory import sent
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Gate:
    """A gate on every residual branch of one block, for all (scalar), per row ``(B,)`` or per token ``(B, T)``.

    With three axes, ``(B, 1, 1)`` or ``(B, T, 1)``, it meets states as it is.

    ``run`` selects: where it is false the token leaves the block as it entered, bit for bit. ``weight`` multiplies the
    branch. Either may be none; both together weigh the branch of those who run. ``whole`` weighs what the block adds in
    the place of its branches, x + g (block(x) − x).
    """

    run: Bool[Tensor, "..."] | None = None
    weight: Float[Tensor, "..."] | None = None
    whole: bool = False


@dataclass(frozen=True)
class Plan:
    """``run[n, b, t]`` says whether token t of row b runs block n; ``weight`` gives its branches a soft factor.

    A plan may lie on the host while states are on a device. ``real`` then says, on the host too, which tokens are no
    padding, so that nobody has to ask the device.
    """

    run: Bool[Tensor, "N B T"]
    weight: Float[Tensor, "N B T"] | None = None
    real: Bool[Tensor, "B T"] | None = None

    @classmethod
    def of_depths(cls, depths: Int[Tensor, "B T"], num_layers: int) -> "Plan":
        """Every token runs its first ``depths[b, t]`` blocks and no more.

        The host asks none of torch's threads (see ``memory.sending``).
        """
        if depths.device.type != "cpu":
            return cls(torch.arange(num_layers, device=depths.device).view(-1, 1, 1) < depths)
        known = depths.numpy()
        if known.size and not 0 <= known.min() <= known.max() <= num_layers:
            found = f"{known.min()} to {known.max()}"
            raise InputError(f"depths go from 0 (padding) to {num_layers}, the number of layers; found {found}")
        return cls(torch.from_numpy(np.arange(num_layers).reshape(-1, 1, 1) < known))

    def to(self, device: torch.device) -> "Plan":
        """The same plan there."""
        weight = None if self.weight is None else sent(self.weight, device)
        return replace(self, run=sent(self.run, device), weight=weight)

    @property
    def depths(self) -> Int[Tensor, "B T"]:
        """How many blocks each token runs."""
        return self.run.sum(0)

    def gate(self, layer: int) -> Gate:
        """The gate of one block."""
        return Gate(self.run[layer], None if self.weight is None else self.weight[layer])

    def num_layers_needed(self) -> int:
        """One more than the last block that any token runs: beyond it nothing changes. Waits for the device once."""
        wanted = self.run.flatten(1).any(1).nonzero()
        return int(wanted.max()) + 1 if len(wanted) else 0
