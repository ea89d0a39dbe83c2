"""A client of ``depthwise serve`` that needs nothing but Python.

    depthwise serve runs/demo
    python examples/client.py "de 4 7 1 1"
    python examples/client.py "de 4 7 1 1" --depth 2 --stream
    DEPTHWISE_API_KEY=… python examples/client.py --address https://models.example.org "en 1 2"

The same class serves programs: ``Client().generate("de 4 7 1 1", depth="full")["output"]``.
"""

import argparse
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

Depth = str | int | dict[str, float]
"""full, a number of blocks, the name of a calibrated setting, or a budget such as ``{"quality_drop": 0.5}``."""


class ServerError(Exception):
    """What the server says instead of an answer, with the remedy where it knows one."""

    def __init__(self, status: int, message: str, remedy: str | None, retry_after: float | None) -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.status, self.retry_after = status, retry_after


class Client:
    """Asks one server; waits and asks again, so many times, when it is told that the server is busy."""

    def __init__(
        self,
        address: str = "http://127.0.0.1:8000",
        key: str | None = None,
        *,
        timeout: float = 60.0,
        attempts: int = 3,
    ) -> None:
        self.address, self.timeout, self.attempts = address.rstrip("/"), timeout, attempts
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def models(self) -> list[dict[str, Any]]:
        """What is served, and at which depths it can run."""
        with self._open("/v1/models") as reply:
            found: list[dict[str, Any]] = json.load(reply)["models"]
            return found

    def generate(self, text: str, *, depth: Depth | None = None, **options: Any) -> dict[str, Any]:
        """The answer to a text, with the depth of every token and what it all cost."""
        return self.ask("/v1/generate", {"input": text, **_given(depth), **options})

    def stream(self, text: str, *, depth: Depth | None = None, **options: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """``("token", …)`` for each token as it is made, then ``("done", …)`` with the whole answer."""
        with self._open("/v1/generate", {"input": text, "stream": True, **_given(depth), **options}) as reply:
            kind = ""
            for line in map(bytes.decode, reply):
                field, _, value = line.rstrip("\r\n").partition(": ")
                if field == "event":
                    kind = value
                elif field == "data" and kind == "error":
                    error = json.loads(value)["error"]
                    raise ServerError(200, error["message"], error.get("remedy"), None)
                elif field == "data":
                    yield kind, json.loads(value)

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Any of the other addresses: ``/v1/classify``, ``/v1/tag``, ``/v1/answer``, ``/v1/completions``."""
        with self._open(path, body) as reply:
            found: dict[str, Any] = json.load(reply)
            return found

    def _open(self, path: str, body: dict[str, Any] | None = None) -> HTTPResponse:
        content = None if body is None else json.dumps(body).encode()
        for left in reversed(range(self.attempts)):
            request = urllib.request.Request(self.address + path, content, self.headers)
            try:
                reply: HTTPResponse = urllib.request.urlopen(request, timeout=self.timeout)
                return reply
            except urllib.error.HTTPError as refused:
                error = _error_of(refused)
                if error.retry_after is None or not left:
                    raise error from None
                time.sleep(error.retry_after)
        raise AssertionError("attempts is at least 1")


def _given(depth: Depth | None) -> dict[str, Any]:
    return {} if depth is None else {"depth": depth}


def _error_of(refused: urllib.error.HTTPError) -> ServerError:
    after = refused.headers.get("Retry-After", "")
    try:
        told = json.loads(refused.read())["error"]
    except (ValueError, KeyError, TypeError):
        told = {"message": f"the server answered with status {refused.code}"}
    return ServerError(refused.code, told["message"], told.get("remedy"), float(after) if after.isdigit() else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--address", default="http://127.0.0.1:8000")
    parser.add_argument("--depth", help="full, a number or a calibrated setting; else what the server's run prefers")
    parser.add_argument("--stream", action="store_true", help="print tokens as they come")
    options = parser.parse_args()
    client = Client(options.address, os.environ.get("DEPTHWISE_API_KEY"))
    depth = int(options.depth) if options.depth and options.depth.isdigit() else options.depth
    try:
        if options.stream:
            for kind, found in client.stream(options.text, depth=depth):
                if kind == "token":
                    print(f"{found['depth']:3} {found['text']!r}", flush=True)
        else:
            found = client.generate(options.text, depth=depth)
    except ServerError as error:
        raise SystemExit(str(error)) from None
    except urllib.error.URLError as error:
        raise SystemExit(f"{options.address} does not answer ({error.reason}); start it: depthwise serve RUN") from None
    cost = found["cost"]
    print(found["output"])
    print(
        f"{cost['token_layers']} of {cost['full_token_layers']} layers "
        f"({found['depth']['mean']:.2f} of {found['depth']['layers']} per token) in {1000 * cost['seconds']:.0f} ms"
    )


if __name__ == "__main__":
    main()
