"""The processes that train one model together, as torchrun starts them."""

import os
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import PartialState
from torch import distributed


@dataclass
class Team:
    """Which of how many processes this one is. The first leads: it prepares, writes and speaks for all."""

    rank: int = 0
    world_size: int = 1
    _group: Any = field(default=None, repr=False)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        """Until all have come here."""
        if self.world_size > 1:
            distributed.barrier(self._group)

    def any_of_us(self, wish: bool) -> bool:
        """Whether any process has a wish; asked on the CPU, so that no device is waited for."""
        if self.world_size == 1:
            return wish
        votes = torch.tensor([int(wish)])
        distributed.all_reduce(votes, distributed.ReduceOp.MAX, self._group)
        return bool(votes.item())


def team(*, on_gpu: bool) -> Team:
    """The team that this process was started in: one of its own, unless torchrun started it."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return Team()
    PartialState(cpu=not on_gpu)
    return Team(distributed.get_rank(), world_size, distributed.new_group(backend="gloo"))
