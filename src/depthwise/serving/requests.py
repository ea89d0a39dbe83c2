"""Reading requests, and waiting for their answers: no longer than is allowed, and not for clients that have gone."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel

from depthwise.errors import DepthwiseError, InputError, QueueError
from depthwise.serving.guard import trace_of
from depthwise.serving.hub import Hub
from depthwise.serving.refusals import Refused
from depthwise.serving.served import Served

Found = TypeVar("Found")
S = TypeVar("S", bound=Served)
GONE = 499
"""The status of a request whose client did not wait; nobody sees it but the log."""
DEPTHS = (
    'may be "full", a whole number from 1 on, the name of a calibrated setting, {"quality_drop": number} or '
    '{"compute": share from 0 to 1}'
)
SHOWN = 8
"""Mistakes of one request that are told at once."""


class JsonRequest(Request):
    """A request whose body is JSON as its standard has it."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            return json.loads(body.decode(), parse_constant=_no_number)
        except UnicodeDecodeError as error:
            raise Refused(400, f"byte {error.start + 1} of the body is not UTF-8", "send UTF-8") from None
        except json.JSONDecodeError as error:
            raise Refused(400, f"the body is not JSON: {error.msg} at character {error.pos + 1}", "mend it") from None
        except RecursionError:
            raise Refused(400, "the body is nested too deeply", "send what /openapi.json describes") from None
        except ValueError as error:
            raise Refused(400, f"the body is not JSON: {error}", "mend it") from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


class JsonRoute(APIRoute):
    """Bodies are JSON and say so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            if request.method == "POST":
                _check_content_type(request.headers.get("content-type", ""))
            return await handle(JsonRequest(request.scope, request.receive))

        return handled


def _check_content_type(given: str) -> None:
    kind, *parameters = (part.strip().lower() for part in given.split(";"))
    named = dict(part.replace('"', "").split("=", 1) for part in parameters if "=" in part)
    if kind != "application/json" or named.get("charset", "utf-8") not in ("utf-8", "utf8"):
        raise Refused(415, "the body has to be JSON in UTF-8", "send Content-Type: application/json")


def refused_by_schema(error: RequestValidationError) -> Refused:
    """What is wrong with a body, each mistake once and without the values that it has there."""
    if any(each["type"] == "missing" and each["loc"] == ("body",) for each in error.errors()):
        return Refused(400, "the body is empty", "send what /openapi.json describes")
    found: dict[str, str] = {}
    for each in error.errors():
        place = [str(part) for part in each["loc"] if part != "body"]
        name = place[0] if place else "the body"
        if name == "depth":
            found["depth"] = f"depth {DEPTHS}"
        else:
            where = (
                name if len(place) < 2 else ".".join(part for part in place if part.isidentifier() or part.isdigit())
            )
            found.setdefault(where, f"{where}: {_said(each['msg'])}")
    told = list(found.values())
    more = f" (and {len(told) - SHOWN} more)" if len(told) > SHOWN else ""
    return Refused(422, "; ".join(told[:SHOWN])[:2000] + more, "see /openapi.json")


def _said(message: str) -> str:
    return message[:1].lower() + message[1:]


# Waiting


def time_left(hub: Hub, request: Request) -> float:
    """Seconds until a request has to be answered."""
    return trace_of(request.scope).started + hub.options.limits.seconds - monotonic()


def chosen(hub: Hub, request: Request, kind: type[S], name: str | None, *, completes: bool = False) -> S:
    """The run that a request is for."""
    served = hub.served(kind, name, completes=completes)
    trace_of(request.scope).model = served.name
    return served


async def prepared(
    hub: Hub, request: Request, served: Served, texts: Sequence[str], prepare: Callable[[], Found]
) -> Found:
    """Texts as ids."""
    future = served.prepare(sum(map(len, texts)), prepare)
    return future.result() if future.done() else await answer_to(hub, request, future)


async def answer_to(hub: Hub, request: Request, future: "Future[Found]") -> Found:
    """What a future gives. Where time is over or the client has gone, what was asked for is called off."""
    try:
        return await unless_gone(hub, request, asyncio.wrap_future(future))
    finally:
        future.cancel()


async def unless_gone(hub: Hub, request: Request, waited: "asyncio.Future[Found]") -> Found:
    """The same for what the server itself does."""
    gone = asyncio.ensure_future(_gone(request))
    try:
        both: set[asyncio.Future[Any]] = {waited, gone}
        await asyncio.wait(both, timeout=max(0.0, time_left(hub, request)), return_when="FIRST_COMPLETED")
        if waited.done():
            return waited.result()
        if gone.done():
            raise ClientGone
        raise over_time(hub)
    except DepthwiseError as error:
        raise refused_by(hub, error) from None
    finally:
        waited.cancel()
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone


def json_answer(answer: BaseModel) -> Response:
    """An answer of the type that the schema names, which need not be checked again."""
    return Response(answer.model_dump_json(), media_type="application/json")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def over_time(hub: Hub) -> Refused:
    return Refused(504, f"there was no answer within {hub.options.limits.seconds:g} seconds", "ask for less, or later")


def refused_by(hub: Hub, error: DepthwiseError) -> Refused:
    """One of our own errors as clients see it."""
    if isinstance(error, QueueError):
        if hub.is_draining:
            hub.check_ready()
        return Refused.because(error, 503, "queue_full")
    if isinstance(error, InputError):
        return Refused.because(error)
    raise error
