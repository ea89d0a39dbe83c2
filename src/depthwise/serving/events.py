"""Server-sent events: answers in parts, as they come."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


def event(data: Any, name: str | None = None) -> str:
    """One event, whose data is a line of JSON or a word."""
    line = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False)
    return f"data: {line}\n\n" if name is None else f"event: {name}\ndata: {line}\n\n"


def described(*names: str) -> dict[str, Any]:
    """A stream of events in the schema, by the form of each event."""
    data = {"type": "string", "contentMediaType": "application/json"}
    fields = {"data": data, **({"event": {"enum": list(names)}} if names else {})}
    each = {"type": "object", "properties": fields, "required": list(fields)}
    return {"content": {"text/event-stream": {"schema": {**each, "description": "Of each event."}}}}


class EventStream(StreamingResponse):
    """An answer in events. Whatever ends it, ``at_end`` is called once: also where the client has gone before."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], at_end: Callable[[], Any]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._at_end()
