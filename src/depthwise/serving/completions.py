"""``POST /v1/completions``: language models for clients that know OpenAI's API."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request

from depthwise.errors import DepthwiseError
from depthwise.serving.completion_schemas import Choice, ChoiceDepth, Completion, CompletionRequest, Usage
from depthwise.serving.events import EventStream, described, event
from depthwise.serving.generating import Prepared, TextServed, Wanted
from depthwise.serving.guard import trace_of
from depthwise.serving.hub import Hub, log
from depthwise.serving.refusals import Refused
from depthwise.serving.requests import JsonRoute, chosen, json_answer, prepared, refused_by, unless_gone
from depthwise.serving.schemas import MAX_SEED
from depthwise.serving.served import Spent
from depthwise.serving.text_routes import Telling, asked_of

DONE = "[DONE]"


@dataclass
class Told:
    """The text of one choice, up to the first of some words that end it."""

    stops: Sequence[str]
    text: str = ""
    num_sent: int = 0
    is_stopped: bool = False

    def add(self, piece: str) -> None:
        begin = max(0, len(self.text) - max((len(stop) for stop in self.stops), default=0))
        self.text += piece
        places = [place for stop in self.stops if (place := self.text.find(stop, begin)) >= 0]
        if places:
            self.text, self.is_stopped = self.text[: min(places)], True

    def unsent(self, *, at_end: bool = False) -> str:
        """What may be sent now: no part of it can be the beginning of a word that ends the text."""
        held = 0
        if not at_end and not self.is_stopped:
            most = max((len(stop) - 1 for stop in self.stops), default=0)
            ends = (self.text[-length:] for length in range(min(most, len(self.text)), 0, -1))
            held = next((len(end) for end in ends if any(stop.startswith(end) for stop in self.stops)), 0)
        until = max(self.num_sent, len(self.text) - held)
        piece, self.num_sent = self.text[self.num_sent : until], until
        return piece


@dataclass
class Writing:
    """One choice in the making."""

    index: int
    telling: Telling
    told: Told
    began: float = field(default_factory=time.perf_counter)

    async def write(self, hub: Hub, request: Request, send: Callable[[Choice], None]) -> Choice:
        """All of it; ``send`` gets the parts."""
        served, asked = self.telling.served, self.telling.asked
        reason = "stop"
        while not self.told.is_stopped:
            token = await self.telling.next(hub, request)
            if token is None:
                reason = served.finish_reason(asked, self.telling.answer())
                break
            self.told.add(token.text)
            if piece := self.told.unsent():
                send(Choice(text=piece, index=self.index, finish_reason=None))
        self.telling.ticket.cancel()
        done = self.telling.ticket.future
        waited = done.result(0).waited if done.done() and not done.cancelled() else 0.0
        depths = tuple(token.depth for token in self.telling.tokens)
        spent = Spent(depths, waited, time.perf_counter() - self.began, len(asked.ids), len(depths))
        hub.metrics.answered(served, spent)
        report = served.depth_report(asked.wanted.depth, asked.setting, spent)
        costs = ChoiceDepth(depth=report, cost=served.cost(spent), depths=list(depths))
        last: Any = reason
        rest = self.told.unsent(at_end=True)
        send(Choice(text=rest, index=self.index, finish_reason=last, depthwise=costs))
        return Choice(text=self.told.text, index=self.index, finish_reason=last, depthwise=costs)


def completion_routes(hub: Hub, responses: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(route_class=JsonRoute, responses=responses)

    @router.post("/v1/completions", response_model=Completion, responses={200: described()}, tags=["text"])
    async def complete(body: CompletionRequest, request: Request) -> Any:
        """Continue prompts, as OpenAI's API does; `depthwise` in each choice says how deep its tokens ran."""
        served = chosen(hub, request, TextServed, body.model, completes=True)
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        count = body.n or 1
        most = hub.options.limits.choices
        if len(prompts) * count > most:
            raise Refused(422, f"{len(prompts) * count:,} texts are more than the {most} of a request", "ask for fewer")
        texts = await prepared(hub, request, served, prompts, lambda: _prepared(served, body, prompts, count))
        stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
        writings = _begun(hub, served, texts, stops)
        whole = Completion(id=f"cmpl-{secrets.token_hex(12)}", created=int(time.time()), model=served.name, choices=[])
        num_prompt = sum(len(asked.ids) for asked in texts[::count])
        if body.stream:
            wants_usage = body.stream_options is not None and body.stream_options.include_usage
            events = _events(hub, request, writings, whole, prompts, num_prompt, wants_usage=wants_usage)
            return EventStream(events, lambda: _call_off(writings))
        try:
            wait = asyncio.gather(*(each.write(hub, request, lambda _: None) for each in writings))
            choices = await unless_gone(hub, request, wait)
        finally:
            _call_off(writings)
        _record(hub, request, prompts, choices, writings)
        return json_answer(whole.model_copy(update={"choices": choices, "usage": _usage(num_prompt, writings)}))

    return router


def _prepared(served: TextServed, body: CompletionRequest, prompts: Sequence[str], count: int) -> list[Prepared]:
    """Every prompt as often as it is wanted; each text draws numbers of its own."""
    found = []
    for place, prompt in enumerate(prompts):
        for copy in range(count):
            seed = None if body.seed is None else (body.seed + place * count + copy) % MAX_SEED
            wanted = Wanted(
                depth=asked_of(body.depth),
                max_new_tokens=body.max_tokens,
                temperature=1.0 if body.temperature is None else body.temperature,
                top_p=body.top_p,
                seed=seed,
            )
            found.append(served.prepared(prompt, wanted))
    return found


def _begun(hub: Hub, served: TextServed, texts: Sequence[Prepared], stops: Sequence[str]) -> list[Writing]:
    """All of them in the queue, or none."""
    writings: list[Writing] = []
    try:
        for index, asked in enumerate(texts):
            writings.append(Writing(index, Telling(served, asked), Told(stops)))
    except DepthwiseError as error:
        _call_off(writings)
        raise refused_by(hub, error) from None
    return writings


def _call_off(writings: Sequence[Writing]) -> None:
    for writing in writings:
        writing.telling.ticket.cancel()


async def _events(
    hub: Hub,
    request: Request,
    writings: Sequence[Writing],
    whole: Completion,
    prompts: Sequence[str],
    num_prompt: int,
    *,
    wants_usage: bool,
) -> AsyncIterator[str]:
    trace, parts = trace_of(request.scope), asyncio.Queue[Choice | None]()
    trace.outcome = "gone"  # unless it comes to its end

    async def write() -> list[Choice]:
        try:
            return await asyncio.gather(*(each.write(hub, request, parts.put_nowait) for each in writings))
        finally:
            parts.put_nowait(None)

    writing = asyncio.ensure_future(write())
    try:
        while (choice := await parts.get()) is not None:
            yield event(whole.model_copy(update={"choices": [choice]}).model_dump(exclude={"usage"}))
        choices = await writing
        if wants_usage:
            yield event(whole.model_copy(update={"usage": _usage(num_prompt, writings)}).model_dump())
        _record(hub, request, prompts, choices, writings)
        trace.outcome = "ok"
        yield event(DONE)
    except Refused as refused:
        trace.outcome = "timeout"
        yield event(refused.content)
    except DepthwiseError as error:
        trace.outcome = "refused"
        yield event(refused_by(hub, error).content)
    finally:
        writing.cancel()


def _usage(num_prompt: int, writings: Sequence[Writing]) -> Usage:
    made = sum(len(each.telling.tokens) for each in writings)
    return Usage(prompt_tokens=num_prompt, completion_tokens=made, total_tokens=num_prompt + made)


def _record(
    hub: Hub, request: Request, prompts: Sequence[str], choices: Sequence[Choice], writings: Sequence[Writing]
) -> None:
    costs = [choice.depthwise for choice in choices if choice.depthwise is not None]
    depths = tuple(depth for each in costs for depth in each.depths)
    waited = max((each.cost.queued_seconds for each in costs), default=0.0)
    num_read = sum(len(each.telling.asked.ids) for each in writings)
    trace_of(request.scope).spent = Spent(depths, waited, 0.0, num_read, len(depths))
    if hub.options.logs_text:
        log.info("%r became %r", list(prompts), [choice.text for choice in choices])
