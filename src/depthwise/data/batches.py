"""Batches of similar length within a budget of tokens, the same for the same seed, epoch and position.

An epoch is one list of batches that depends on the lengths, the options, the seed and the epoch's number, and on
nothing else: not on how many processes share it. Position p means that its first p batches are done. At each step
every process takes one of the next batches, in the order of their ranks. In the last step there may be fewer batches
than processes. Then the largest of them are halved until there is one for each; if even single examples do not
suffice, the remaining processes get an example that is to be ignored, written as ``~i``. So each example counts exactly
once per epoch, all processes do the same number of steps, and a run may go on with another number of processes.
"""

import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from depthwise.errors import ConfigError, DataError, Problem

ORDERS = ("shuffled", "sorted", "given")
TOO_LONG = ("alone", "skip")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchOptions:
    """How large batches are and in which order they come."""

    max_tokens: int | None = None
    """Rows times the longest text among all sides, padding included, must not exceed this."""
    max_rows: int | None = None
    order: str = "shuffled"
    """``shuffled`` by seed and epoch, ``sorted`` with the longest first, or as ``given``, without regard to length."""
    seed: int = 0
    too_long: str = "alone"
    """An example that exceeds the budget by itself gets a batch ``alone``, or is left out by ``skip``."""
    pad_to_multiple: int = 1
    """Lengths count as ``lengthened`` makes them."""

    def __post_init__(self) -> None:
        problems = []
        if self.max_tokens is None and self.max_rows is None:
            problems.append(Problem("max_tokens", "is missing, and so is max_rows; give at least one of them"))
        for name in ("max_tokens", "max_rows", "pad_to_multiple"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                problems.append(Problem(name, f"{getattr(self, name)} leaves no batch; give at least 1"))
        if self.order not in ORDERS:
            problems.append(Problem("order", f'"{self.order}" is none of {", ".join(ORDERS)}'))
        if self.too_long not in TOO_LONG:
            problems.append(Problem("too_long", f'"{self.too_long}" is none of {", ".join(TOO_LONG)}'))
        if self.seed < 0:
            problems.append(Problem("seed", f"{self.seed} is negative; give 0 or more"))
        if problems:
            raise ConfigError("batches", problems)


class TokenBatches(Sampler[list[int]]):
    """A batch sampler for PyTorch's ``DataLoader``: lists of the numbers of examples, for one process.

    ``lengths`` has one row per example and one column per side, as ``TokenStore.lengths`` gives it. Iterating ends an
    epoch and begins at the next one; ``set_epoch`` goes to any other.
    """

    def __init__(self, lengths: npt.NDArray[Any], options: BatchOptions, *, rank: int = 0, world_size: int = 1) -> None:
        assert 0 <= rank < world_size
        sides = lengths if lengths.ndim == 2 else lengths[:, None]
        multiple = options.pad_to_multiple
        self.options, self.rank, self.world_size = options, rank, world_size
        self._widths = -(sides.max(axis=1, initial=1).astype(np.int64) // -multiple) * multiple
        self._totals = sides.sum(axis=1, dtype=np.int64)
        self._lengths_digest = zlib.crc32(np.ascontiguousarray(sides, np.int64).data)
        over = self._widths > (options.max_tokens or np.inf)
        self.too_long: npt.NDArray[np.int64] = np.flatnonzero(over)
        """Numbers of the examples that exceed the budget by themselves."""
        self.examples = np.flatnonzero(~over) if options.too_long == "skip" else np.arange(len(sides))
        """Numbers of the examples that are batched."""
        self._note_too_long()
        self.epoch, self.position = 0, 0
        self._began = (0, 0)
        self._plan_of: tuple[int, Plan] | None = None

    def _note_too_long(self) -> None:
        num, limit = len(self.too_long), self.options.max_tokens
        if num and self.options.too_long == "skip":
            log.warning(
                "%s of %s examples are longer than max_tokens=%s and are left out", num, len(self._widths), limit
            )
        elif num:
            log.warning(
                "%s of %s examples are longer than max_tokens=%s and get batches of their own, up to %s tokens",
                *(num, len(self._widths), limit, self._widths.max()),
            )
        if not len(self.examples):
            what = f"is longer than max_tokens={limit}" if num else "is there"
            raise DataError(f"there is nothing to batch: {'every example' if num else 'no example'} {what}")

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch. The epoch one is in, perhaps after loading a state, goes on where it was."""
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0
        self._began = self.epoch, self.position

    def __len__(self) -> int:
        """How many batches each process gets in the whole of this epoch."""
        return -(self.num_batches // -self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        self._began = self.epoch, self.position
        return self._steps(*self._began)

    def _steps(self, epoch: int, position: int) -> Iterator[list[int]]:
        plan, size = self._plan(), self.world_size
        for start in range(position, plan.num_batches, size):
            step = [plan.batch(number) for number in range(start, min(start + size, plan.num_batches))]
            self.epoch, self.position = self._after(epoch, start + size)
            yield (step if len(step) == size else _shared_out(step, size))[self.rank]

    def state_dict(self, num_used: int | None = None) -> dict[str, int]:
        """Where the epoch stands, for any number of processes.

        ``num_used`` is how many batches this process has trained on since it began to iterate; a ``DataLoader`` with
        workers takes more than that ahead of time. Without it all that were taken count.
        """
        epoch, position = self.epoch, self.position
        if num_used is not None:
            epoch, position = self._after(self._began[0], self._began[1] + num_used * self.world_size)
        return {"epoch": epoch, "position": position, "digest": self._digest()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to where a state was taken; the same data and options are needed for that."""
        if state["digest"] != self._digest():
            raise DataError(
                "the batches were saved for other data or other batch options; "
                "resume with those of the first start, or begin a new run"
            )
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._began = self.epoch, self.position

    def _digest(self) -> int:
        return zlib.crc32(repr(self.options).encode(), self._lengths_digest)

    def _after(self, epoch: int, position: int) -> tuple[int, int]:
        return (epoch, position) if position < self.num_batches else (epoch + 1, 0)

    @cached_property
    def num_batches(self) -> int:
        """The same in every epoch: what is cut is always sorted by width or as given."""
        return self._plan().num_batches

    def _plan(self) -> "Plan":
        """The plan of this epoch, kept until another one is wanted."""
        if self._plan_of is None or self._plan_of[0] != self.epoch:
            self._plan_of = self.epoch, self.planned(self.epoch)
        return self._plan_of[1]

    def planned(self, epoch: int) -> "Plan":
        """Put examples in order, cut the order into batches, and put the batches in order."""
        options, examples = self.options, self.examples
        generator = np.random.default_rng([options.seed, epoch])
        if options.order != "given":
            if options.order == "shuffled":
                examples = generator.permutation(examples)
            examples = examples[np.lexsort((self._totals[examples], self._widths[examples]))]
        bounds = _cut(self._widths[examples], options.max_tokens, options.max_rows)
        order = np.arange(len(bounds) - 1)
        if options.order == "shuffled":
            order = generator.permutation(order)
        elif options.order == "sorted":
            order = order[::-1]
        return Plan(examples, bounds, order)


@dataclass(frozen=True)
class Plan:
    """The batches of an epoch as three arrays: examples, where each batch begins, and which batch comes when."""

    examples: npt.NDArray[np.int64]
    bounds: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]

    @property
    def num_batches(self) -> int:
        return len(self.order)

    def batch(self, number: int) -> list[int]:
        which = self.order[number]
        rows: list[int] = self.examples[self.bounds[which] : self.bounds[which + 1]].tolist()
        return rows


def _cut(widths: npt.NDArray[np.int64], max_tokens: int | None, max_rows: int | None) -> npt.NDArray[np.int64]:
    """Where batches begin and end: each takes as many of the next examples as fit, but at least one."""
    bounds, total = [0], len(widths)
    while (start := bounds[-1]) < total:
        num_rows = total - start if max_rows is None else min(max_rows, total - start)
        if max_tokens is not None:
            num_rows = max(1, min(num_rows, max_tokens // int(widths[start])))
            padded = np.maximum.accumulate(widths[start : start + num_rows]) * np.arange(1, num_rows + 1)
            num_rows = max(1, int(np.searchsorted(padded, max_tokens, side="right")))
        bounds.append(start + num_rows)
    return np.array(bounds)


def _shared_out(batches: list[list[int]], num: int) -> list[list[int]]:
    """The same examples in ``num`` batches, with an ignored one for each batch that would be empty."""
    batches = list(batches)
    while len(batches) < num and len(largest := max(batches, key=len)) > 1:
        where, middle = batches.index(largest), len(largest) // 2
        batches[where : where + 1] = [largest[:middle], largest[middle:]]
    return batches + [[~batches[0][0]] for _ in range(num - len(batches))]
