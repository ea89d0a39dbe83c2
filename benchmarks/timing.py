"""How time, peak memory and growth are measured: the one place for warm-up, synchronisation and repeats."""

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from statistics import linear_regression, median
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

Run = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")

SHORTEST_SAMPLE = 0.1
"""Seconds that one sample lasts at least: short runs are called several times for it."""


def interleaved_seconds(
    runs: Mapping[Name, Run], *, device: torch.device, repeats: int, before: Mapping[Name, Run] = MappingProxyType({})
) -> dict[Name, float]:
    """Median seconds of each run.

    The runs take turns, one sample each per round, so that whatever else the machine is doing slows all of them alike:
    compare results of one call with each other, not with those of another. What stands ``before`` the samples of a run
    is not timed.
    """
    samples = interleaved_samples(runs, device=device, repeats=repeats, before=before)
    return {name: median(of) for name, of in samples.items()}


def interleaved_samples(
    runs: Mapping[Name, Run],
    *,
    device: torch.device,
    repeats: int,
    shortest: float = SHORTEST_SAMPLE,
    before: Mapping[Name, Run] = MappingProxyType({}),
) -> dict[Name, list[float]]:
    """The same with the seconds of every round: those of one round are the nearest to each other in time."""
    calls: dict[Name, int] = {}
    for name, run in runs.items():
        before.get(name, nothing)()
        calls[name] = _calls_per_sample(run, device, shortest)
    samples: dict[Name, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            before.get(name, nothing)()
            samples[name].append(_seconds_per_call(run, calls[name], device))
    return samples


def nothing() -> None:
    pass


def seconds_of(run: Callable[[], Result], device: torch.device) -> tuple[float, Result]:
    """Seconds of one call, and what it returns."""
    found: list[Result] = []
    seconds = _seconds_per_call(lambda: found.append(run()), 1, device)
    return seconds, found[0]


def _calls_per_sample(run: Run, device: torch.device, shortest: float) -> int:
    _seconds_per_call(run, 2, device)
    return math.ceil(shortest / _seconds_per_call(run, 1, device))


def _seconds_per_call(run: Run, calls: int, device: torch.device) -> float:
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize(device)
        return start.elapsed_time(end) / 1000 / calls
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - begin) / calls


class Stopwatch:
    """Seconds spent in parts of a run, by name; parts must not lie within each other.

    On a GPU they are those of its own clock, for which nobody waits until all is over.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._host: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def timed(self, name: str, function: Callable[..., Result]) -> Callable[..., Result]:
        """The same function, the time of which counts for this part."""

        def run(*arguments: Any, **options: Any) -> Result:
            if self.device.type == "cuda":
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                result = function(*arguments, **options)
                end.record()
                self._events.append((name, start, end))
                return result
            begin = time.perf_counter()
            result = function(*arguments, **options)
            self._host[name] = self._host.get(name, 0.0) + time.perf_counter() - begin
            return result

        return run

    def taken(self) -> dict[str, float]:
        """The seconds of each part since this was last asked."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for name, start, end in self._events:
            self._host[name] = self._host.get(name, 0.0) + start.elapsed_time(end) / 1000
        found, self._host, self._events = self._host, {}, []
        return found


def peak_bytes(run: Run, *, device: torch.device) -> int:
    """Most bytes that ``run`` holds at once, above what was there before it; what it returns counts, inputs do not.

    On the CPU torch's profiler records every allocation and release of torch's allocator, temporaries inside operators
    included, and the peak of their running sum is the answer; scratch space that a vendor library allocates by itself
    stays unseen. On a GPU it is the rise of ``torch.cuda.max_memory_allocated``.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's back end would report every start and stop
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        result = run()
    del result
    held = peak = 0
    for change in _allocations(recorded):
        held += change
        peak = max(peak, held)
    return peak


def _allocations(recorded: profile) -> list[int]:
    """Bytes taken (positive) and given back (negative), in order."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = [event for event in events if event["name"] == "[memory]"]
    return [event["args"]["Bytes"] for event in sorted(changes, key=lambda event: event["ts"])]


def growth(sizes: list[int], values: list[float]) -> float:
    """Exponent p of values ~ sizes**p: the slope of a least-squares line through the logarithms."""
    return linear_regression([math.log(size) for size in sizes], [math.log(value) for value in values]).slope
