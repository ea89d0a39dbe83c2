"""What every request passes before anything is done for it: the key, the size of its body, the time that it takes."""

import asyncio
import hashlib
import hmac
import logging
import traceback
from time import monotonic
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from depthwise.serving.hub import Hub, Trace
from depthwise.serving.refusals import Refused

ENDPOINTS = frozenset(
    [
        *("/", "/health", "/ready", "/metrics", "/openapi.json", "/v1/models"),
        *("/v1/generate", "/v1/completions", "/v1/classify", "/v1/tag", "/v1/answer"),
    ]
)
OPEN = frozenset(("/", "/health", "/ready", "/openapi.json"))
"""What needs no key, beside the files of the playground."""
ALWAYS = frozenset(("/health", "/ready", "/metrics"))
"""What is answered while the server drains."""
ASSETS = "/assets/"
TRACE = "trace"
DISCARDED = 8
"""Times the largest body, which are read of one that is larger, so that the client gets to see why it is refused."""
DISCARD_SECONDS = 1.0
OUTCOMES = {401: "unauthorized", 499: "gone", 503: "unavailable", 504: "timeout"}
log = logging.getLogger("depthwise.serving")


def outcome_of(status: int) -> str:
    if status in OUTCOMES:
        return OUTCOMES[status]
    return "ok" if status < 400 else "refused" if status < 500 else "failed"


class Guard:
    """Middleware around the whole application."""

    def __init__(self, app: ASGIApp, hub: Hub) -> None:
        self.app, self.hub = app, hub
        key = hub.options.api_key
        self._key = None if key is None else _digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        endpoint = path if path in ENDPOINTS else "/assets" if path.startswith(ASSETS) else "other"
        trace, status = Trace(endpoint), 0
        scope.setdefault("state", {})[TRACE] = trace

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._passed(scope, receive, told)
        except Exception as error:
            if status:  # the answer has begun: whoever reads it finds it cut off
                trace.outcome = "failed"
            self._tell(error)
            if not status:
                await _refuse(Refused(500, "the server failed, not the request", "see its log"), scope, receive, told)
        finally:
            self._record(trace, scope["method"], status)

    async def _passed(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
        except Refused as refused:
            await _discard(receive, self.hub.options.limits.body_bytes * DISCARDED)
            await _refuse(refused, scope, receive, send)
            return
        self.hub.num_active += 1
        try:
            await self.app(scope, self._limited(receive), send)
        finally:
            self.hub.num_active -= 1

    def _check(self, scope: Scope) -> None:
        path = scope["path"]
        if self.hub.is_draining and path not in ALWAYS:
            self.hub.check_ready()
        headers = dict(scope["headers"])
        if self._key is not None and path not in OPEN and not path.startswith(ASSETS):
            self._check_key(headers)
        most, told = self.hub.options.limits.body_bytes, headers.get(b"content-length", b"")
        if told.isdigit() and int(told[:20]) > most:
            raise _too_large(most)

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        key = given.strip() if kind.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        assert self._key is not None
        if not hmac.compare_digest(_digest(key), self._key):
            raise Refused(401, "this server wants its key", "send Authorization: Bearer KEY")

    def _limited(self, receive: Receive) -> Receive:
        """Reads a body as far as it may go, and as long as it may take."""
        most, until = self.hub.options.limits.body_bytes, monotonic() + self.hub.options.limits.seconds
        size, is_whole = 0, False

        async def limited() -> Message:
            nonlocal size, is_whole
            if is_whole:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.001, until - monotonic()))
            except TimeoutError:
                raise Refused(408, "the body of the request did not arrive in time", "send it faster") from None
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                is_whole = not message.get("more_body", False)
                if size > most:
                    if not is_whole:
                        await _discard(receive, most * DISCARDED)
                    raise _too_large(most)
            return message

        return limited

    def _tell(self, error: Exception) -> None:
        """Messages of errors may quote what a user wrote; the places in the code do not."""
        if self.hub.options.logs_text:
            log.error("a request failed", exc_info=error)
            return
        places = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
        log.error("a request failed: %s at\n%s", type(error).__name__, places)

    def _record(self, trace: Trace, method: str, status: int) -> None:
        outcome, seconds = trace.outcome or outcome_of(status or 499), monotonic() - trace.started
        self.hub.metrics.ended(trace.endpoint, trace.model, outcome, seconds)
        if trace.endpoint in ALWAYS or trace.endpoint == "/assets":
            return
        words = [method, trace.endpoint, str(status or "-"), outcome, f"{1000 * seconds:.1f} ms"]
        if trace.model:
            words.append(f"model={trace.model}")
        if trace.spent is not None:
            depths = trace.spent.depths
            words.append(f"read={trace.spent.num_read} made={trace.spent.num_made}")
            words.append(f"depth={sum(depths) / max(1, len(depths)):.2f} queued={1000 * trace.spent.waited:.1f} ms")
        log.info(" ".join(words))


def _digest(key: bytes) -> bytes:
    """Of one length for all keys, so that comparing them takes the same time."""
    return hashlib.sha256(key).digest()


def _too_large(most: int) -> Refused:
    return Refused(413, f"the body is larger than {most:,} bytes", "send less at a time")


async def _discard(receive: Receive, most: int) -> None:
    """Read the rest of a body, up to a limit, before its request is refused: else some clients never see the answer."""
    size = 0
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            while size <= most:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


async def _refuse(refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
    await error_response(refused)(scope, receive, send)


def error_response(refused: Refused) -> JSONResponse:
    """The answer that says why there is none. Whoever is told that the server stops should not stay connected."""
    headers = dict(refused.headers or {})
    if refused.kind in ("shutting_down", "body_too_large", "request_timeout"):
        headers["Connection"] = "close"
    return JSONResponse(refused.content, refused.status_code, headers)


def trace_of(scope: Scope | Any) -> Trace:
    """The trace of a request."""
    trace: Trace = scope["state"][TRACE]
    return trace
