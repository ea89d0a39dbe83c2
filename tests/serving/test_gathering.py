"""Jobs are gathered for a moment and run together, each with its own end."""

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from depthwise.errors import QueueError
from depthwise.serving.gathering import Gathering

from .conftest import SOON, until

Make = Callable[..., Gathering[Any, Any]]


@pytest.fixture
def gather() -> Iterator[Make]:
    opened: list[Gathering[Any, Any]] = []

    def make(run: Callable[[Hashable, list[Any]], list[Any]], **options: Any) -> Gathering[Any, Any]:
        given = {"max_rows": 4, "max_wait": 0.05, "max_waiting": 100, "max_size": 100, **options}
        opened.append(Gathering(run, **given))
        return opened[-1]

    yield make
    for gathering in opened:
        gathering.close()


class Recorded:
    """Doubles numbers, remembers batches, and waits where it is told to."""

    def __init__(self) -> None:
        self.batches: list[tuple[Hashable, list[Any]]] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def __call__(self, group: Hashable, items: list[Any]) -> list[Any]:
        self.batches.append((group, items))
        assert self.goes_on.wait(SOON)
        return [2 * item for item in items]


def test_groups_sizes_and_order(gather: Make) -> None:
    run = Recorded()
    run.goes_on.clear()
    gathering = gather(run)
    first = gathering.submit("a", 0, 1)
    until(lambda: len(run.batches) == 1)
    sizes = {1: 10, 2: 10, 3: 40, 4: 10, 5: 200, 6: 10, 7: 10, 8: 10}
    jobs = {item: gathering.submit("b" if item == 4 else "a", item, size) for item, size in sizes.items()}
    assert gathering.num_waiting == 8
    assert gathering.num_running == 1
    run.goes_on.set()
    assert {item: job.result(SOON).found for item, job in jobs.items()} == {item: 2 * item for item in sizes}
    assert first.result(0).found == 0
    assert run.batches[1:] == [("a", [1, 2, 6, 7]), ("a", [3, 8]), ("b", [4]), ("a", [5])]


def test_times(gather: Make) -> None:
    found = gather(Recorded(), max_wait=0.05).submit("a", 1, 1).result(SOON)
    assert 0.04 < found.waited <= found.seconds


def test_a_full_batch_does_not_wait(gather: Make) -> None:
    gathering = gather(Recorded(), max_rows=2, max_wait=20.0)
    began = time.monotonic()
    jobs = [gathering.submit("a", item, 1) for item in range(2)]
    assert [job.result(SOON).found for job in jobs] == [0, 2]
    assert time.monotonic() - began < 10


def test_a_failure_is_that_of_one_job(gather: Make) -> None:
    def run(_: Hashable, items: list[Any]) -> list[Any]:
        if 3 in items:
            raise ValueError("three")
        return items

    gathering = gather(run)
    jobs = [gathering.submit("a", item, 1) for item in (1, 2, 3, 4)]
    assert [job.result(SOON).found for job in jobs if job is not jobs[2]] == [1, 2, 4]
    with pytest.raises(ValueError, match="three"):
        jobs[2].result(SOON)


def test_what_is_called_off_does_not_run(gather: Make) -> None:
    run = Recorded()
    run.goes_on.clear()
    gathering = gather(run, max_waiting=2)
    gathering.submit("a", 0, 1)
    until(lambda: len(run.batches) == 1)
    gone, kept = gathering.submit("a", 1, 1), gathering.submit("a", 2, 1)
    with pytest.raises(QueueError, match="2 requests are waiting, which is as many as may; ask again later"):
        gathering.submit("a", 3, 1)
    assert gone.cancel()
    assert gathering.num_waiting == 1
    later = gathering.submit("a", 3, 1)  # takes the place of the one that has gone
    run.goes_on.set()
    assert [kept.result(SOON).found, later.result(SOON).found] == [4, 6]
    with pytest.raises(CancelledError):
        gone.result(0)
    assert run.batches[1:] == [("a", [2, 3])]


def test_closing_finishes_what_was_taken(gather: Make) -> None:
    run = Recorded()
    gathering = gather(run, max_wait=20.0)
    jobs = [gathering.submit("a", item, 1) for item in range(3)]
    gathering.close()
    assert [job.result(0).found for job in jobs] == [0, 2, 4]
    with pytest.raises(QueueError, match="takes no more requests"):
        gathering.submit("a", 1, 1)
