"""``POST /v1/generate``: one text for one text, whole or token by token."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request

from depthwise.engine import Answer, Said, Ticket
from depthwise.errors import DepthwiseError
from depthwise.serving.depth_choices import Asked
from depthwise.serving.events import EventStream, described, event
from depthwise.serving.gathering import Timed
from depthwise.serving.generating import Prepared, TextServed, Wanted
from depthwise.serving.guard import trace_of
from depthwise.serving.hub import Hub, log
from depthwise.serving.pieces import TextStream
from depthwise.serving.refusals import Refused
from depthwise.serving.requests import (
    JsonRoute,
    answer_to,
    chosen,
    json_answer,
    over_time,
    prepared,
    refused_by,
    time_left,
)
from depthwise.serving.schemas import ComputeBudget, Depth, GenerateAnswer, GenerateRequest, QualityBudget, Token
from depthwise.serving.served import Spent


def asked_of(depth: Depth | None) -> Asked | None:
    """The depth of a request in plain words."""
    return depth.model_dump() if isinstance(depth, QualityBudget | ComputeBudget) else depth


@dataclass
class Telling:
    """Tokens of one text as they come, from the thread of the queue to that of the server."""

    served: TextServed
    asked: Prepared
    ticket: Ticket = field(init=False)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._said: asyncio.Queue[Said | None] = asyncio.Queue()
        self.ticket = self.served.submit(self.asked, self._put)
        self.ticket.future.add_done_callback(lambda _: self._put(None))
        self._text: TextStream = self.served.stream(self.asked)
        self.tokens: list[Token] = []

    def _put(self, said: Said | None) -> None:
        with suppress(RuntimeError):  # the server has stopped meanwhile
            self._loop.call_soon_threadsafe(self._said.put_nowait, said)

    async def next(self, hub: Hub, request: Request) -> Token | None:
        """The next token, or none at the end; ``Refused`` where time is over."""
        try:
            said = await asyncio.wait_for(self._said.get(), max(0.0, time_left(hub, request)))
        except TimeoutError:
            raise over_time(hub) from None
        if said is None:
            return None
        token = Token(text=self._text.step(said.token), id=said.token, depth=said.depth, score=said.score)
        self.tokens.append(token)
        return token

    def answer(self) -> Answer:
        """Once all tokens are told; or what went wrong."""
        return self.ticket.future.result(0)


def text_routes(hub: Hub, responses: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(route_class=JsonRoute, responses=responses)
    streamed = described("token", "done", "error")

    @router.post("/v1/generate", response_model=GenerateAnswer, responses={200: streamed}, tags=["text"])
    async def generate(body: GenerateRequest, request: Request) -> Any:
        """Translate, summarise or continue a text.

        With `stream`, the answer is events: `token` with each token as it is made, then `done` with the whole answer,
        or `error`.
        """
        served = chosen(hub, request, TextServed, body.model)
        wanted = wanted_by(body)
        if body.stream and wanted.num_beams > 1:
            raise Refused(422, "beams have nothing to stream before their end", "leave out stream or num_beams")
        asked = await prepared(hub, request, served, [body.input], lambda: served.prepared(body.input, wanted))
        try:
            if body.stream:
                telling = Telling(served, asked)
                return EventStream(_events(hub, request, telling, body.input), telling.ticket.cancel)
            if wanted.num_beams > 1:
                timed: Timed[Answer] = await answer_to(hub, request, served.submit_beams(asked))
                found, waited, seconds = timed.found, timed.waited, timed.seconds
            else:
                found = await answer_to(hub, request, served.submit(asked).future)
                waited, seconds = found.waited, found.seconds
        except DepthwiseError as error:
            raise refused_by(hub, error) from None
        scores = found.scores or (None,) * len(found.tokens)
        stream = served.stream(asked)
        tokens = [
            Token(text=stream.step(token), id=token, depth=depth, score=score)
            for token, depth, score in zip(found.tokens, found.depths, scores, strict=True)
        ]
        answer = answered(hub, request, served, asked, tokens, served.finish_reason(asked, found), waited, seconds)
        _tell_text(hub, body.input, answer.output)
        return json_answer(answer)

    return router


def wanted_by(body: GenerateRequest) -> Wanted:
    temperature = body.temperature
    if temperature is None and (body.top_k is not None or body.top_p is not None):
        temperature = 1.0
    return Wanted(
        depth=asked_of(body.depth),
        to=body.to,
        max_new_tokens=body.max_new_tokens,
        temperature=temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        seed=body.seed,
        num_beams=body.num_beams or 1,
    )


async def _events(hub: Hub, request: Request, telling: Telling, given: str) -> AsyncIterator[str]:
    trace, served, asked = trace_of(request.scope), telling.served, telling.asked
    trace.outcome = "gone"  # unless it comes to its end
    try:
        while (token := await telling.next(hub, request)) is not None:
            yield event(token.model_dump(), "token")
        found = telling.answer()
        reason = served.finish_reason(asked, found)
        answer = answered(hub, request, served, asked, telling.tokens, reason, found.waited, found.seconds)
        _tell_text(hub, given, answer.output)
        trace.outcome = "ok"
        yield event(answer.model_dump(), "done")
    except Refused as refused:
        trace.outcome = "timeout"
        yield event(refused.content, "error")
    except DepthwiseError as error:
        trace.outcome = "refused"
        yield event(refused_by(hub, error).content, "error")


def answered(
    hub: Hub,
    request: Request,
    served: TextServed,
    asked: Prepared,
    tokens: list[Token],
    finish_reason: Any,
    waited: float,
    seconds: float,
) -> GenerateAnswer:
    """The whole answer; it is counted here."""
    depths = tuple(token.depth for token in tokens)
    spent = Spent(depths, waited, seconds, len(asked.ids), len(tokens))
    trace_of(request.scope).spent = spent
    hub.metrics.answered(served, spent)
    return GenerateAnswer(
        model=served.name,
        output=served.text(asked, [token.id for token in tokens]),
        tokens=tokens,
        depth=served.depth_report(asked.wanted.depth, asked.setting, spent),
        cost=served.cost(spent),
        finish_reason=finish_reason,
    )


def _tell_text(hub: Hub, given: str, found: str) -> None:
    if hub.options.logs_text:
        log.info("%r became %r", given, found)
