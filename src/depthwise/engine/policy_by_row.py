"""Rows of one batch that leave by policies of their own."""

from collections.abc import Sequence

import numpy as np
import torch

from depthwise.depth import Policy, State, Visit
from depthwise.engine.rows import on_device
from depthwise.shapes import Bool, Tensor


class PolicyByRow(Policy):
    """Each row leaves where the policy of its number says; none runs to the end.

    Every policy is asked about all rows, and what it says of those of others is not heard. One that plans is asked at
    the first exit, and its rows leave when they have come as deep as that.
    """

    def __init__(self, policies: Sequence[Policy | None], of_row: np.ndarray) -> None:
        super().__init__()
        self._policies, self._of_row = list(policies), of_row

    def leaving(self, visit: Visit, state: State) -> tuple[Bool[Tensor, "B 1"], State]:
        of_row = state.get("of_row")
        if of_row is None:
            of_row = on_device(self._of_row, visit.hidden.device).unsqueeze(1)
        leaves, after = torch.zeros_like(of_row, dtype=torch.bool), {"of_row": of_row}
        for number, policy in enumerate(self._policies):
            if policy is None:
                continue
            own = {name.partition(".")[2]: value for name, value in state.items() if name.startswith(f"{number}.")}
            if policy.plans:
                planned = own.get("planned")
                planned = policy.plan(visit.context).expand(visit.context.shape) if planned is None else planned
                says, own = planned <= visit.depth, {"planned": planned}
            else:
                says, own = policy.leaving(visit, own)
            leaves |= says & (of_row == number)
            after |= {f"{number}.{name}": value for name, value in own.items()}
        return leaves, after
