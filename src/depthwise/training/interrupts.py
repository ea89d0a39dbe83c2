"""Ctrl-C and SIGTERM as a wish to stop after the present update, not as an end in the middle of it."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Which signal asked for a stop, if any did."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __bool__(self) -> bool:
        return self.number is not None


@contextmanager
def heeded() -> Iterator[Interrupt]:
    """Take note of the first signal; a second one acts as it always does. Only the main thread can do this."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    earlier = {number: signal.getsignal(number) for number in STOPS}

    def note(number: int, frame: FrameType | None) -> None:
        interrupt.number = number
        print("stopping after this update; once more stops at once", file=sys.stderr)
        for each, handler in earlier.items():
            signal.signal(each, handler)

    for number in STOPS:
        signal.signal(number, note)
    try:
        yield interrupt
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def leave_signals_to_the_trainer(worker: int) -> None:
    """A signal that reaches all processes, as Ctrl-C does, must not end a worker before the update that needs it."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
