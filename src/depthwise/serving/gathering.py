"""Small batches for models that answer in one go: what waits is gathered for a moment, and run together."""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from depthwise.errors import QueueError

Item = TypeVar("Item")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Timed(Generic[Found]):
    """What a job found, and how long that took; of its ``seconds``, it waited ``waited``."""

    found: Found
    waited: float
    seconds: float


@dataclass(eq=False)
class _Job(Generic[Item, Found]):
    group: Hashable
    item: Item
    size: int
    future: "Future[Timed[Found]]" = field(default_factory=Future)
    submitted: float = field(default_factory=time.perf_counter)


class Gathering(Generic[Item, Found]):
    """Answers jobs of any thread in one thread of its own, jobs of the same group together.

    ``run`` gets a group and its items, and gives as many answers. A batch has at most ``max_rows`` items, and no more
    than ``max_size`` when the largest is counted for each; a single item may be larger than that. Where a batch fails,
    each of its jobs is tried by itself, and has its own error.
    """

    def __init__(
        self,
        run: Callable[[Hashable, list[Item]], list[Found]],
        *,
        max_rows: int,
        max_wait: float,
        max_waiting: int,
        max_size: int,
    ) -> None:
        self._run, self._max_rows, self._max_wait = run, max_rows, max_wait
        self._max_waiting, self._max_size = max_waiting, max_size
        self._waiting: deque[_Job[Item, Found]] = deque()
        self._changed = threading.Condition()
        self._is_closed, self.num_running = False, 0
        self._thread = threading.Thread(target=self._work, name="depthwise batches", daemon=True)
        self._thread.start()

    def submit(self, group: Hashable, item: Item, size: int) -> "Future[Timed[Found]]":
        """Cancelling the future calls the job off, if it is not running yet."""
        job: _Job[Item, Found] = _Job(group, item, size)
        with self._changed:
            if self._is_closed:
                raise QueueError("this model takes no more requests; ask another server")
            if len(self._waiting) >= self._max_waiting:
                self._waiting = deque(each for each in self._waiting if not each.future.cancelled())
            if len(self._waiting) >= self._max_waiting:
                raise QueueError(f"{self._max_waiting} requests are waiting, which is as many as may; ask again later")
            self._waiting.append(job)
            self._changed.notify_all()
        return job.future

    @property
    def num_waiting(self) -> int:
        with self._changed:
            return sum(not job.future.cancelled() for job in self._waiting)

    def close(self) -> None:
        """Take no more jobs, and wait until all are answered."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    # The thread that has the model

    def _work(self) -> None:
        while (jobs := self._next()) is not None:
            started = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            self.num_running = len(started)
            if started:
                self._answer(started, time.perf_counter())
            self.num_running = 0

    def _next(self) -> list[_Job[Item, Found]] | None:
        """The jobs that run now, none where there will never be any."""
        with self._changed:
            while not self._waiting:
                if self._is_closed:
                    return None
                self._changed.wait()
            until = self._waiting[0].submitted + self._max_wait
            while len(self._waiting) < self._max_rows and not self._is_closed:
                left = until - time.perf_counter()
                if left <= 0:
                    break
                self._changed.wait(left)
            return self._taken()

    def _taken(self) -> list[_Job[Item, Found]]:
        """The oldest job and those of its group that fit with it; the others keep their places."""
        group, largest = self._waiting[0].group, 0
        taken: list[_Job[Item, Found]] = []
        left: deque[_Job[Item, Found]] = deque()
        for job in self._waiting:
            size = max(largest, job.size)
            fits = len(taken) < self._max_rows and size * (len(taken) + 1) <= self._max_size
            if job.group == group and (not taken or fits):
                taken.append(job)
                largest = size
            else:
                left.append(job)
        self._waiting = left
        return taken

    def _answer(self, jobs: list[_Job[Item, Found]], began: float) -> None:
        try:
            found = self._run(jobs[0].group, [job.item for job in jobs])
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:
                self._answer([job], began)
            return
        now = time.perf_counter()
        for job, each in zip(jobs, found, strict=True):
            job.future.set_result(Timed(each, began - job.submitted, now - job.submitted))
