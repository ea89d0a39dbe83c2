"""How long work takes and how much memory it needs: the one place where clocks are read and devices waited for."""

import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

Result = TypeVar("Result")


@dataclass(frozen=True)
class Timing:
    """Seconds by the wall, and the most memory held meanwhile: on a GPU in its tensors, else by the whole process.

    The memory is none where the system does not tell.
    """

    seconds: float
    peak_memory_bytes: int | None

    def rate(self, count: int) -> float | None:
        """So many per second; none where no time passed."""
        return count / self.seconds if self.seconds > 0 else None


def timed(work: Callable[[], Result], device: torch.device) -> tuple[Result, Timing]:
    """Does the work and measures it, with nothing pending on the device before or after."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    result = work()
    if on_gpu:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - started
    return result, Timing(seconds, torch.cuda.max_memory_allocated(device) if on_gpu else resident_peak())


def timed_in_turns(work: Callable[[], Result], device: torch.device, turns: int) -> tuple[Result, Timing]:
    """Does the same work several times: what the last turn gives, and the median time of all but the first."""
    found = [timed(work, device) for _ in range(turns)]
    counted = sorted((timing for _, timing in found[1:] or found), key=lambda timing: timing.seconds)
    return found[-1][0], counted[(len(counted) - 1) // 2]


def resident_peak() -> int | None:
    """The most memory that this process has held since it began."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def hardware(device: torch.device) -> str:
    """What the numbers were measured on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} {'thread' if threads == 1 else 'threads'}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
