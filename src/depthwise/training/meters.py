"""Sums over what was trained on since the last line of the log, kept on the device so that nothing waits for it."""

from collections.abc import Mapping

import torch

from depthwise.shapes import Tensor


class Meter:
    """Named sums in float64. A checkpoint holds them too, so that the next line is the same after an interruption."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.num_items = 0
        self._sums: dict[str, Tensor] = {}

    def add(self, sums: Mapping[str, Tensor], num_items: int) -> None:
        """Sums over some items of a batch, and how many those were; the tensors may be overwritten afterwards."""
        self.num_items += num_items
        for name, value in sums.items():
            self._sums[name] = value.detach().double() + self._sums.get(name, 0)

    def sums(self) -> dict[str, float]:
        """All sums on the host; this waits for the device, once."""
        if not self._sums:
            return {}
        values = torch.stack(list(self._sums.values())).tolist()
        return dict(zip(self._sums, values, strict=True))

    def reset(self) -> None:
        self._sums, self.num_items = {}, 0

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Sums of a checkpoint by their names, and ``num_items`` beside them."""
        self.num_items = int(state["num_items"])
        self._sums = {
            name: torch.tensor(value, dtype=torch.float64, device=self.device)
            for name, value in state.items()
            if name != "num_items"
        }
