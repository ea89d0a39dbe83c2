"""``POST /v1/classify``, ``/v1/tag`` and ``/v1/answer``: what a model says about a text."""

from typing import Any

from fastapi import APIRouter, Request, Response

from depthwise.errors import DepthwiseError
from depthwise.serving.encoding import AnswersServed, ClassesServed, EncoderServed, Reading, TagsServed
from depthwise.serving.guard import trace_of
from depthwise.serving.hub import Hub, log
from depthwise.serving.refusals import Refused
from depthwise.serving.requests import JsonRoute, answer_to, chosen, json_answer, prepared, refused_by
from depthwise.serving.schemas import (
    AnswerAnswer,
    AnswerRequest,
    Asking,
    ClassifyAnswer,
    ClassifyRequest,
    InputToken,
    TagAnswer,
    TagRequest,
    Word,
)
from depthwise.serving.served import Spent
from depthwise.serving.text_routes import asked_of


def encoder_routes(hub: Hub, responses: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(route_class=JsonRoute, responses=responses, tags=["encoders"])

    @router.post("/v1/classify", response_model=ClassifyAnswer)
    async def classify(body: ClassifyRequest, request: Request) -> Response:
        """The class of a text or of a pair of texts, with the probability of each; or the number that is estimated."""
        served = chosen(hub, request, ClassesServed, body.model)
        if served.takes_pairs and body.pair is None:
            raise Refused(422, "this model judges pairs of texts", "give pair too")
        if body.pair is not None and not served.takes_pairs:
            raise Refused(422, "this model judges single texts", "leave pair out")
        texts = (body.input,) if body.pair is None else (body.input, body.pair)
        found, common = await _read(hub, request, served, body, texts)
        (value, pieces), labels = found.value, served.labels
        tokens = [InputToken(text=text, depth=depth) for text, depth in zip(pieces, found.depths, strict=True)]
        if labels is None:
            return json_answer(ClassifyAnswer(value=value, tokens=tokens, **common))
        scores = dict(zip(labels, value, strict=True))
        label = max(scores, key=lambda name: scores[name])
        return json_answer(ClassifyAnswer(label=label, scores=scores, tokens=tokens, **common))

    @router.post("/v1/tag", response_model=TagAnswer)
    async def tag(body: TagRequest, request: Request) -> Response:
        """The tag of every word."""
        served = chosen(hub, request, TagsServed, body.model)
        if isinstance(body.input, list) and any(" " in word for word in body.input):
            raise Refused(422, "a word of input has a blank", "give words one by one")
        text = body.input if isinstance(body.input, str) else " ".join(body.input)
        found, common = await _read(hub, request, served, body, (text,))
        words = [word for word in text.split(" ") if word]
        pairs = zip(words, found.value, strict=True)
        tagged = [Word(text=word, tag=name, depth=depth) for word, (name, depth) in pairs]
        return json_answer(TagAnswer(words=tagged, **common))

    @router.post("/v1/answer", response_model=AnswerAnswer)
    async def answer(body: AnswerRequest, request: Request) -> Response:
        """The part of a context that answers a question, if any does."""
        served = chosen(hub, request, AnswersServed, body.model)
        found, common = await _read(hub, request, served, body, (body.question, body.context))
        said, threshold = found.value
        best = said.best[0] if said.best else None
        is_silent = best is None or (threshold is not None and said.null_margin > threshold)
        whole = AnswerAnswer(
            answer="" if best is None or is_silent else best.text,
            start=None if best is None or is_silent else best.start,
            end=None if best is None or is_silent else best.end,
            score=None if best is None else best.score,
            null_score=None if best is None else said.null_score,
            **common,
        )
        return json_answer(whole)

    return router


async def _read(
    hub: Hub, request: Request, served: EncoderServed, body: Asking, texts: tuple[str, ...]
) -> tuple[Reading, dict[str, Any]]:
    """What the model says of texts, and the parts that all answers have."""
    asked = asked_of(body.depth)
    setting = served.setting(asked)
    row = await prepared(hub, request, served, texts, lambda: served.prepared(*texts))
    try:
        timed = await answer_to(hub, request, served.submit(row, setting))
    except DepthwiseError as error:
        raise refused_by(hub, error) from None
    found = timed.found
    spent = Spent(found.depths, timed.waited, timed.seconds, len(found.depths))
    trace_of(request.scope).spent = spent
    hub.metrics.answered(served, spent)
    if hub.options.logs_text:
        log.info("%r became %r", texts, found.value)
    report = served.depth_report(asked, setting, spent)
    return found, {"model": served.name, "depth": report, "cost": served.cost(spent)}
