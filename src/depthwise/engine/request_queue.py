"""A queue of requests that are answered together: the batch stays full, since whoever has ended is replaced.

with engine.queue(max_rows=32) as queue:
    ticket = queue.submit(ids, max_new_tokens=50)
    for said in ticket:
        print(said.token, said.depth)
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch

from depthwise.depth import Policy
from depthwise.engine.fills import MAX_PENDING, check_fill
from depthwise.engine.live_batch import Joining, LiveBatch
from depthwise.engine.requests import request_of
from depthwise.engine.tickets import OnToken, Ticket
from depthwise.errors import InputError, QueueError
from depthwise.models.executing import Executor, executed_by
from depthwise.shapes import Int, Tensor

AHEAD = 4
"""How many times as many requests are made ready as are worth joining."""


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """How much a queue takes and does at a time."""

    max_rows: int = 32
    """Requests that are answered at the same time."""
    max_wait: float = 0.01
    """Seconds for which a free row may wait for more requests, so that they join together; and the time of a step."""
    join_at_once: int | None = None
    """Requests that are worth joining without waiting for others. None stands for an eighth of the rows, and for one
    where nothing runs yet.

    Four times as many are made ready at once: their sources encoded, their prompts run.
    """
    max_waiting: int | None = None
    """Requests that may wait; one more is a ``QueueError``."""
    fill: str = "deferred"
    max_pending: int = MAX_PENDING

    def __post_init__(self) -> None:
        check_fill(self.fill, self.max_pending)
        for name in ("max_rows", "join_at_once", "max_waiting"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}, which lets nobody in; give at least 1")
        if not self.max_wait >= 0:
            raise InputError(f"max_wait is {self.max_wait}; give a number of seconds, or 0 to let everybody in at once")

    @property
    def worth_joining(self) -> int:
        return min(self.join_at_once or max(1, self.max_rows // 8), self.max_rows)


@dataclass(frozen=True)
class _Ready:
    """A request that may join: where it stands among those that were made ready with it."""

    ticket: Ticket
    joining: Joining
    place: int


class RequestQueue:
    """Answers requests of any thread in a thread of its own, which has the model to itself until the queue is closed.

    Every answer is that of the request alone. ``num_running`` and ``num_waiting`` say how busy it is; ``token_layers``
    counts the blocks that new tokens ran so far.
    """

    def __init__(self, make_batch: Callable[[], LiveBatch], executor: Executor, options: QueueOptions) -> None:
        self.options, self._make_batch, self._executor = options, make_batch, executor
        self._batch = make_batch()
        self._model = self._batch.model
        self._waiting: deque[Ticket] = deque()
        self._ready: deque[_Ready] = deque()
        self._running: dict[int, Ticket] = {}
        self._changed = threading.Condition()
        self._is_closed = self._calls_all_off = self._has_cancelled = False
        self._room_since: float | None = None
        self._layers_before = 0
        self._thread = threading.Thread(target=self._work, name="depthwise queue", daemon=True)
        self._thread.start()

    def submit(
        self,
        input_ids: Sequence[int] | Int[Tensor, "T"],
        *,
        policy: Policy | Literal["model"] | None = "model",
        on_token: OnToken | None = None,
        **options: Any,
    ) -> Ticket:
        """Ask for the translation of a source, or the continuation of a prompt: one row, all of it real tokens.

        ``options`` are those of ``Engine.generate`` for one row, but for beams. Its tokens leave by the policy that the
        model has now, by another one, or none for full depth. ``on_token`` is called with each token, in the queue's
        own thread: it should be quick. What is wrong with a request is an ``InputError`` here and now.
        """
        request = request_of(self._model, input_ids, self._model.policy if policy == "model" else policy, options)
        ticket = Ticket(request, on_token)
        with self._changed:
            if self._is_closed:
                raise QueueError("the queue is closed and takes no more requests; open another one")
            most = self.options.max_waiting
            if most is not None and len(self._waiting) + len(self._ready) >= most and self.num_waiting >= most:
                raise QueueError(f"{most} requests are waiting, which is as many as may; ask again later")
            self._waiting.append(ticket)
            self._changed.notify_all()
        ticket.future.add_done_callback(self._see_cancelled)
        return ticket

    @property
    def num_waiting(self) -> int:
        with self._changed:
            found = (*self._waiting, *(ready.ticket for ready in self._ready))
        return sum(not ticket.future.cancelled() for ticket in found)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def token_layers(self) -> int:
        return self._layers_before + self._batch.num_run

    def close(self, *, finish: bool = True) -> None:
        """Take no more requests, and wait until all are answered; or call off whatever is not done yet."""
        with self._changed:
            self._is_closed = True
            self._calls_all_off |= not finish
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> "RequestQueue":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(finish=kind is None)

    # The thread that has the model

    def _see_cancelled(self, future: "Future[Any]") -> None:
        if future.cancelled():
            with self._changed:
                self._has_cancelled = True
                self._changed.notify_all()

    def _work(self) -> None:
        with torch.inference_mode(), executed_by(self._executor):
            while self._has_work():
                try:
                    self._let_cancelled_go()
                    self._admit(self._next())
                    if self._running:
                        self._step()
                except Exception as error:
                    self._give_up(error)

    def _has_work(self) -> bool:
        """Waits until there is something to do; false where there never will be."""
        with self._changed:
            while not (self._running or self._has_cancelled or self._calls_all_off or self._num_joining()):
                if self._is_closed and not (self._waiting or self._ready):
                    return False
                since, wait = self._room_since, self.options.max_wait
                self._changed.wait(None if since is None else max(0.0, since + wait - time.monotonic()))
            return bool(self._running or self._waiting or self._ready or not self._is_closed)

    def _next(self) -> int:
        """How many requests join now. Others are made ready with them, so that this is worth it."""
        with self._changed:
            count = self._num_joining()
            self._room_since = None if count else self._room_since
            missing = count - len(self._ready)
            most = max(missing, AHEAD * self.options.worth_joining)
            found = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))] if missing > 0 else []
        self._make_ready(found)
        return count

    def _num_joining(self) -> int:
        """For how many free rows there are requests that are worth it, or all there are when one was free for long."""
        num_all = len(self._waiting) + len(self._ready)
        num_able = min(self.options.max_rows - len(self._running), num_all)
        if num_able == 0:
            self._room_since = None
            return 0
        now = time.monotonic()
        self._room_since = now if self._room_since is None else self._room_since
        is_idle = not self._running and self.options.join_at_once is None
        is_worth_it = is_idle or num_able >= self.options.worth_joining
        is_time = now - self._room_since >= self.options.max_wait
        nobody_else_comes = self._is_closed and num_able == num_all
        return num_able if is_worth_it or is_time or nobody_else_comes else 0

    def _let_cancelled_go(self) -> None:
        with self._changed:
            if not (self._calls_all_off or self._has_cancelled):
                return
            self._has_cancelled = False
            tickets = [*self._waiting, *(ready.ticket for ready in self._ready)]
        if self._calls_all_off:
            for ticket in (*tickets, *self._running.values()):
                ticket.cancel()
        with self._changed:
            gone = {ticket for ticket in tickets if ticket.future.cancelled()}
            self._waiting = deque(ticket for ticket in self._waiting if ticket not in gone)
            self._ready = deque(ready for ready in self._ready if ready.ticket not in gone)
        for ticket in gone:
            ticket.finish()
        self._leave([ticket for ticket in self._running.values() if ticket.future.cancelled()])

    def _make_ready(self, tickets: list[Ticket]) -> None:
        """Compute what they begin from, together or, where that cannot be, one by one: each then has its own error."""
        if not tickets:
            return
        of_request = {id(ticket.request): ticket for ticket in tickets}
        try:
            found = self._batch.arrivals([ticket.request for ticket in tickets])
        except Exception as error:
            if len(tickets) > 1:
                for ticket in tickets:
                    self._make_ready([ticket])
            else:
                tickets[0].request.error = error
                tickets[0].finish()
            return
        with self._changed:
            for joining in found:
                places = enumerate(joining.requests)
                self._ready.extend(_Ready(of_request[id(request)], joining, place) for place, request in places)

    def _admit(self, count: int) -> None:
        """Let so many of those that are ready join."""
        with self._changed:
            joining = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
        parts: dict[int, tuple[Joining, list[int]]] = {}
        for ready in joining:
            parts.setdefault(id(ready.joining), (ready.joining, []))[1].append(ready.place)
            self._running[id(ready.ticket.request)] = ready.ticket
            ready.ticket.begin()
        if parts:
            self._batch.admit([whole.those(places) for whole, places in parts.values()])

    def _step(self) -> None:
        for request, said in self._batch.step():
            self._running[id(request)].tell(said)
        self._leave([ticket for ticket in self._running.values() if ticket.request.is_done])

    def _leave(self, tickets: list[Ticket]) -> None:
        self._batch.drop([ticket.request for ticket in tickets])
        for ticket in tickets:
            del self._running[id(ticket.request)]
            ticket.finish()

    def _give_up(self, error: Exception) -> None:
        """A step has failed, and with it all that were running; those that wait have another batch."""
        failed, self._running = list(self._running.values()), {}
        self._layers_before += self._batch.num_run
        self._batch = self._make_batch()
        for ticket in failed:
            ticket.request.error = error
            ticket.finish()
