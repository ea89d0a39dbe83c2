"""Requests that arrive when they please, and the highest rate of them that a server keeps up with.

Arrivals are a Poisson process: nobody waits for an answer before the next one asks, as with clients that know nothing
of each other. A latency counts from the moment at which a request was due, so that neither a server that stalls nor a
busy client can hide the wait. ``serving.py`` uses this; it needs nothing but the standard library.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

BEHIND = 0.8
ENOUGH = 2
"""Rates at which a server falls behind, below that share of what arrives, that end the search."""
LONGEST_WAIT = 60.0
"""Seconds that answers are waited for after the last request."""
MOST_LATE = 0.05
"""The share of requests that the 95th percentile leaves out."""


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """When requests come, in seconds from the start: gaps are exponential with a mean of ``1 / rate``."""
    draw, found, at = random.Random(seed), list[float](), 0.0
    while (at := at + draw.expovariate(rate)) < seconds:
        found.append(at)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed; infinite where there are none."""
    if not values:
        return math.inf
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True)
class Load:
    """What a server did at one rate. Requests that were due but got no answer count as endless in the percentiles."""

    rate: float
    offered: int
    answered: int
    refused: int
    seconds: float
    p50: float
    p95: float
    p99: float
    bodies: tuple[bytes, ...] = field(repr=False, default=())
    """What was answered, unread: reading it meanwhile would take the client's time."""

    @property
    def throughput(self) -> float:
        """Answers per second, from the first arrival to the last answer."""
        return self.answered / self.seconds if self.seconds else 0.0

    @property
    def is_behind(self) -> bool:
        """Whether answers were a good deal fewer than arrivals."""
        return self.throughput < BEHIND * self.rate

    def keeps(self, bound: float) -> bool:
        return self.answered > 0 and self.p95 <= bound


class Connections:
    """HTTP/1.1 connections to one address, kept open and used again."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.host, self.port, self.path = parts.hostname or "127.0.0.1", parts.port or 80, parts.path or "/"
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, content: bytes) -> tuple[int, bytes]:
        """Status and body of the answer."""
        reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection(self.host, self.port)
        try:
            head = f"POST {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
            writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content)
            lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
            headers = dict(line.lower().split(b": ", 1) for line in lines[1:] if b": " in line)
            body = await reader.readexactly(int(headers[b"content-length"]))
        except BaseException:
            writer.close()
            raise
        if headers.get(b"connection") == b"close":
            writer.close()
        else:
            self.idle.append((reader, writer))
        return int(lines[0].split()[1]), body

    def close(self) -> None:
        for _, writer in self.idle:
            writer.close()
        self.idle.clear()


async def offer(address: str, contents: Sequence[bytes], rate: float, seconds: float, bound: float, seed: int) -> Load:
    """Sends requests, taken in a random order from ``contents``, at a mean ``rate`` for so many seconds.

    Nobody else comes once so many are late that the bound is lost for the 95th percentile. All answers are waited for,
    so that the server has nothing left to do in the end; those that are very late count as none.
    """
    due, choose, connections = arrivals(rate, seconds, seed), random.Random(seed + 1), Connections(address)
    latencies, bodies = list[float](), list[bytes]()
    refused = num_late = 0
    start = time.perf_counter()
    last = start

    async def one(at: float, content: bytes) -> None:
        nonlocal refused, num_late, last
        try:
            status, body = await connections.post(content)
        except (OSError, asyncio.IncompleteReadError):
            return
        last = time.perf_counter()
        if status != 200:
            refused += 1
            return
        num_late += last - start - at > bound
        latencies.append(last - start - at)
        bodies.append(body)

    tasks = list[asyncio.Task[None]]()
    for at in due:
        waiting = len(tasks) - len(latencies) - refused
        if num_late + refused > MOST_LATE * len(due) or waiting > MOST_LATE * len(due) + 2 * rate * bound:
            break
        if (wait := start + at - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(at, choose.choice(contents))))
    if tasks:
        _, still = await asyncio.wait(tasks, timeout=LONGEST_WAIT)
        for task in still:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    connections.close()
    endless = [math.inf] * (len(due) - len(latencies))
    p50, p95, p99 = (percentile(latencies + endless, share) for share in (0.5, 0.95, 0.99))
    return Load(rate, len(due), len(latencies), refused, last - start, p50, p95, p99, bodies=tuple(bodies))


class Search:
    """Looks for the highest rate at which the 95th percentile stays under the bound.

    ``rate`` is what to try next, or none when the search is over; ``add`` takes what came of it. Rates rise by one step
    after another, until the server has fallen behind the arrivals at several of them. A rate counts as kept if one of
    so many attempts kept it, and one at which answers are merely late does not end the search: others may use the
    machine for a moment.
    """

    def __init__(self, bound: float, first: float, step: float, attempts: int) -> None:
        self.bound, self.step, self.attempts = bound, step, attempts
        self.rate: float | None = first
        self.attempt = self.num_behind = 0
        self.best: Load | None = None
        self.tried: list[Load] = []

    def add(self, load: Load) -> None:
        assert self.rate is not None
        self.tried.append(load)
        self.attempt += 1
        if load.keeps(self.bound):
            self.best = load
        elif self.attempt < self.attempts:
            return
        else:
            self.num_behind += all(each.is_behind for each in self.tried[-self.attempts :])
        self.attempt, self.rate = 0, None if self.num_behind == ENOUGH else self.rate * self.step


def work_of(bodies: Sequence[bytes]) -> dict[str, int]:
    """Tokens of answers, the layers that they ran and those of full depth, where answers tell."""
    found = {"tokens": 0, "token_layers": 0, "full_token_layers": 0}
    for body in bodies:
        answer = json.loads(body)
        found["tokens"] += len(answer["tokens"])
        for name in ("token_layers", "full_token_layers"):
            found[name] += answer.get("cost", {}).get(name, 0)
    return found
