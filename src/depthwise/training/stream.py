"""Batches without end: one epoch after the other, from wherever a run stood."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, Sampler

from depthwise.data import TokenBatches
from depthwise.shapes import Tensor
from depthwise.tasks import Examples, Task


@dataclass(frozen=True)
class Place:
    """How far into the data a run is: ``position`` batches of an epoch of ``size`` are done."""

    epoch: int
    position: int
    size: int

    @property
    def passes(self) -> float:
        """Epochs done, with the share of the present one."""
        return self.epoch + self.position / self.size


class BatchStream(Sampler[list[tuple[int, int]]]):
    """The batches of this process, from the place of ``batches`` on, as numbers of epochs and examples.

    It has no length. Since workers take batches ahead of time, the place is not where the sampler is but follows from
    how many steps were trained on; for the same reason every example says which epoch it is taken for.
    """

    def __init__(self, batches: TokenBatches) -> None:
        self.batches = batches
        self._state = batches.state_dict()

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        while True:
            epoch = self.batches.epoch
            for batch in self.batches:
                yield [(epoch, index) for index in batch]

    def place(self, num_steps: int) -> Place:
        """Where the data stands after that many steps of every process since this stream began."""
        batches, (epoch, position) = self.batches, (self._state["epoch"], self._state["position"])
        num_batches, world_size = batches.num_batches, batches.world_size
        left_in_epoch = -((num_batches - position) // -world_size)
        if num_steps < left_in_epoch:
            return Place(epoch, position + num_steps * world_size, num_batches)
        further = num_steps - left_in_epoch
        return Place(epoch + 1 + further // len(batches), further % len(batches) * world_size, num_batches)

    def state_dict(self, num_steps: int) -> dict[str, int]:
        """What ``TokenBatches.load_state_dict`` needs to go on from there, with any number of processes."""
        place = self.place(num_steps)
        return {**self._state, "epoch": place.epoch, "position": place.position}


class EpochRows(Dataset[Any]):
    """Examples for a ``DataLoader`` whose keys name an epoch too, and the batches that they make.

    What is drawn anew in every epoch, such as masks, depends on the epoch alone and not on when a worker draws it.
    """

    def __init__(self, examples: Examples, task: Task) -> None:
        self.examples, self.task = examples, task

    def __getitem__(self, key: tuple[int, int]) -> tuple[int, Any]:
        epoch, index = key
        self.task.set_epoch(self.examples, epoch)
        return epoch, self.examples[index]

    def collate(self, rows: Sequence[tuple[int, Any]]) -> dict[str, Tensor]:
        self.task.set_epoch(self.examples, rows[0][0])
        return self.task.padded(self.task.collate([row for _, row in rows]))
