"""What whoever submits a request holds in hand: its tokens as they come, its answer, and the way to call it off."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue

from depthwise.engine.requests import Answer, Request, Said

OnToken = Callable[[Said], None]


class Ticket:
    """A request that was taken. Any thread may use it.

    Iterating gives tokens as they are made, to one reader; it ends with the text, or with the error of ``result``. A
    reader that is slow keeps nobody waiting: tokens wait for it, as many as the request asked for. ``future`` is for
    ``asyncio.wrap_future``; cancelling it is cancelling the request.
    """

    def __init__(self, request: Request, on_token: OnToken | None) -> None:
        self.future: Future[Answer] = Future()
        self._request, self._on_token = request, on_token
        self._stream: SimpleQueue[Said | None] = SimpleQueue()
        self._submitted = time.perf_counter()
        self._began = self._submitted
        self.future.add_done_callback(lambda _: self._stream.put(None))

    def __iter__(self) -> Iterator[Said]:
        while (said := self._stream.get()) is not None:
            yield said
        self._stream.put(None)  # so that whoever comes later finds the end too
        self.future.result()

    def result(self, timeout: float | None = None) -> Answer:
        """Waits for the answer; ``CancelledError``, ``TimeoutError`` or what went wrong."""
        return self.future.result(timeout)

    def cancel(self) -> bool:
        """Call the request off, waiting or running: false where it is already done."""
        return self.future.cancel()

    # For the queue alone

    @property
    def request(self) -> Request:
        return self._request

    def begin(self) -> None:
        self._began = time.perf_counter()

    def tell(self, said: Said) -> None:
        """Hand out a token. A callback that fails fails this request."""
        self._stream.put(said)
        if self._on_token is not None:
            try:
                self._on_token(said)
            except Exception as error:
                self._request.error = error

    def finish(self) -> None:
        """Hand out the answer or the error, unless the request was called off by now. To be called once."""
        if not self.future.set_running_or_notify_cancel():
            return
        request, now = self._request, time.perf_counter()
        if request.error is not None:
            self.future.set_exception(request.error)
            return
        self.future.set_result(
            Answer(
                tokens=tuple(each.token for each in request.said),
                depths=tuple(each.depth for each in request.said),
                scores=tuple(each.score for each in request.said),
                has_ended=request.has_ended,
                waited=self._began - self._submitted,
                seconds=now - self._submitted,
            )
        )
