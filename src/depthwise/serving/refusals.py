"""Why a request is not answered, as clients see it: a status, the kind of mistake, a sentence and the remedy."""

from typing import Any

from starlette.exceptions import HTTPException

from depthwise.errors import DepthwiseError

RETRY_SECONDS = 1
KINDS = {
    400: "malformed",
    401: "unauthorized",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "body_too_large",
    415: "unsupported_media_type",
    422: "invalid_value",
    500: "internal",
    503: "unavailable",
    504: "timeout",
}
"""The ``type`` of an error that says nothing more exact."""


class Refused(HTTPException):
    """A request that gets no answer but this one."""

    def __init__(self, status: int, message: str, remedy: str | None = None, *, kind: str | None = None) -> None:
        headers = {}
        if status == 503:
            headers["Retry-After"] = str(RETRY_SECONDS)
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(status, message, headers or None)
        self.kind, self.message, self.remedy = kind or KINDS.get(status, "refused"), message, remedy

    @classmethod
    def because(cls, error: DepthwiseError, status: int = 422, kind: str | None = None) -> "Refused":
        """The same as one of our own errors, whose sentence ends in the remedy."""
        message, _, remedy = " ".join(str(error).split()).partition("; ")
        return cls(status, message, remedy or None, kind=kind)

    @property
    def content(self) -> dict[str, Any]:
        error = {"type": self.kind, "message": self.message}
        return {"error": error if self.remedy is None else {**error, "remedy": self.remedy}}
