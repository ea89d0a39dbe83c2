"""Time, memory and the names of machines."""

import resource
import sys
from types import SimpleNamespace

import pytest
import torch

from depthwise.evaluation import Timing, hardware, timed, timing


def test_time_is_that_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    result, found = timed(lambda: "done", torch.device("cpu"))
    assert (result, found.seconds) == ("done", 2.5)
    assert found.rate(5) == 2.0


@pytest.mark.parametrize(("turns", "seconds"), [(1, 9.0), (2, 2.0), (4, 3.0)])
def test_of_several_turns_the_first_is_not_counted(monkeypatch: pytest.MonkeyPatch, turns: int, seconds: float) -> None:
    """Turns of 9, 2, 4 and 3 seconds: alone the first, then the median of the others."""
    clock = iter([0.0, 9.0, 10.0, 12.0, 20.0, 24.0, 30.0, 33.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    results = iter("abcd")
    result, found = timing.timed_in_turns(lambda: next(results), torch.device("cpu"), turns)
    assert (result, found.seconds) == ("abcd"[turns - 1], seconds)


def test_no_rate_without_time() -> None:
    assert Timing(0.0, None).rate(5) is None


@pytest.mark.parametrize(("system", "unit"), [("linux", 1024), ("darwin", 1)])
def test_memory_of_the_process(monkeypatch: pytest.MonkeyPatch, system: str, unit: int) -> None:
    """Linux counts in units of 1,024 bytes, macOS in bytes."""
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=3))
    monkeypatch.setattr(sys, "platform", system)
    assert timing.resident_peak() == 3 * unit


def test_memory_is_not_known_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert timing.resident_peak() is None


def test_hardware() -> None:
    assert hardware(torch.device("cpu")).endswith(", 1 thread")


@pytest.mark.gpu
def test_memory_of_a_gpu() -> None:
    device = torch.device("cuda")
    _, found = timed(lambda: torch.empty(1 << 20, device=device), device)
    assert found.peak_memory_bytes is not None
    assert found.peak_memory_bytes >= 4 << 20
    assert hardware(device) == torch.cuda.get_device_name()
