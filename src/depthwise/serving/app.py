"""The application: what is asked at which address. Its schema is at ``/openapi.json``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from depthwise.serving.completions import completion_routes
from depthwise.serving.encoder_routes import encoder_routes
from depthwise.serving.guard import OPEN, Guard, error_response
from depthwise.serving.hub import Hub
from depthwise.serving.measuring import CONTENT_TYPE
from depthwise.serving.refusals import Refused
from depthwise.serving.requests import GONE, ClientGone, refused_by_schema
from depthwise.serving.schemas import ErrorAnswer, Models, Status
from depthwise.serving.text_routes import text_routes

PLAYGROUND = Path(__file__).parent / "playground"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
MEANINGS = {
    400: "The body is no JSON in UTF-8.",
    401: "The key is missing or wrong.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not called JSON.",
    422: "A value is wrong, or does not go with the model.",
    503: "Too many are waiting, models are loading, or the server stops. Retry-After says when to ask again.",
    504: "The answer took too long.",
}
OF_POSTS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": meaning} for status, meaning in MEANINGS.items()
}
OF_GETS: dict[int | str, dict[str, Any]] = {status: OF_POSTS[status] for status in (401, 503)}


def create_app(hub: Hub, lifespan: Any = None) -> FastAPI:
    """The application for the runs of a hub."""
    app = FastAPI(
        title="Depthwise",
        summary="Sequence models that spend only the depth each input needs.",
        version=version("depthwise"),
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan or _closing(hub),
    )
    app.add_middleware(Guard, hub=hub)
    if hub.options.api_key is not None:
        _describe_key(app)
    app.include_router(text_routes(hub, OF_POSTS))
    app.include_router(completion_routes(hub, OF_POSTS))
    app.include_router(encoder_routes(hub, OF_POSTS))
    _add_state(app, hub)
    _add_playground(app)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if not isinstance(error, Refused):
            message = {404: "there is nothing at this address", 405: "this address is not asked that way"}
            told = Refused(error.status_code, message.get(error.status_code, str(error.detail)), "see /openapi.json")
            told.headers = error.headers
            error = told
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, error: RequestValidationError) -> Response:
        return error_response(refused_by_schema(error))

    @app.exception_handler(ClientGone)
    async def gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=GONE)

    return app


def _closing(hub: Hub) -> Any:
    """Models are closed when the application is."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        hub.close()

    found: Any = lifespan
    return found


def _describe_key(app: FastAPI) -> None:
    """Say in the schema that requests carry a key."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        schema = plain()
        schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, methods in schema["paths"].items():
            for operation in methods.values():
                operation["security"] = [] if path in OPEN else [{"key": []}]
        return schema

    app.openapi = described  # type: ignore[method-assign]


def _add_state(app: FastAPI, hub: Hub) -> None:
    @app.get("/health", tags=["state"])
    async def health() -> Status:
        """Whether the server runs."""
        return Status(status="ok")

    @app.get("/ready", tags=["state"], responses={503: OF_GETS[503]})
    async def ready() -> Status:
        """Whether it answers requests: models are loaded, and it is not shutting down."""
        hub.check_ready()
        return Status(status="ready")

    @app.get("/metrics", tags=["state"], response_class=Response, responses=_metrics_content())
    async def metrics() -> Response:
        """What was counted so far, for Prometheus."""
        return Response(hub.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/v1/models", tags=["state"], responses=OF_GETS)
    async def models() -> Models:
        """What is served, and the depths that may be asked for."""
        hub.check_ready()
        return Models(models=[served.description() for served in hub.models.values()])


def _metrics_content() -> dict[int | str, dict[str, Any]]:
    told = {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {200: told, 401: OF_GETS[401]}


def _add_playground(app: FastAPI) -> None:
    """The page at ``/``, and its files."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PLAYGROUND / "index.html", headers=PAGE_HEADERS)

    app.mount("/assets", StaticFiles(directory=PLAYGROUND, check_dir=False), name="assets")
