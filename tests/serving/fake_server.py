"""A server that keeps to the shapes of ``docs/serving.md`` and says whatever a test wants it to say.

It answers with made-up words, so that what the page shows is known to the letter; the real server is tested beside it.
"""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import depthwise

PLAYGROUND = Path(depthwise.__file__).parent / "serving" / "playground"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
LAYERS = 4
SETTING = "drop-0.5"


def model(name: str = "numbers", kind: str = "generate", **changes: Any) -> dict[str, Any]:
    usual = {
        "name": name,
        "task": "translation",
        "kind": kind,
        "layers": LAYERS,
        "depths": {
            "full": True,
            "fixed": [1, 2, 3, 4],
            "settings": [{"name": SETTING, "policy": "confidence 0.7", "mean_depth": 1.4}],
            "default": SETTING,
            "budgets": True,
        },
        "languages": None,
        "labels": None,
        "limits": {},
        "examples": ["1 2 3"],
    }
    return {**usual, **changes}


@dataclass
class Refusal:
    """What the server says instead of an answer."""

    status: int
    message: str
    remedy: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


class FakeServer:
    """``asked`` remembers the requests; ``refusal``, ``key``, ``pause`` and ``cut_after`` make trouble."""

    def __init__(self) -> None:
        self.models = [model()]
        self.asked: list[dict[str, Any]] = []
        self.refusal: Refusal | None = None
        self.key: str | None = None
        self.pause = 0.0
        self.cut_after: int | None = None
        self.error_after: int | None = None
        self.prefix = ""
        self.slowness = 1.0
        handler = type("Handler", (_Handler,), {"fake": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}/"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def depths(self, asked: Any, count: int) -> list[int]:
        """Fixed depths for everyone; by the setting, the first goes deep and the others leave at once."""
        if asked == "full":
            return [LAYERS] * count
        if isinstance(asked, int):
            return [asked] * count
        return [3] + [1] * (count - 1) if count else []

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        asked, text = body.get("depth", SETTING), body.get("input", body.get("question"))
        words = [self.prefix + word for word in text.split()]
        if asked == 1:
            words = [*words[:-1], "wrong"]
        depths = self.depths(asked, len(words))
        ran = sum(depths)
        common = {
            "model": body.get("model", "numbers"),
            "depth": {"asked": asked, "policy": None, "mean": ran / max(1, len(depths)), "layers": LAYERS},
            "cost": {
                "token_layers": ran,
                "full_token_layers": LAYERS * len(words),
                "seconds": 0.01 * self.slowness * max(1, ran) + 0.5,
                "queued_seconds": 0.5,
            },
        }
        tokens = [
            {"text": (" " if n else "") + word, "id": n, "depth": depth, "score": -0.1}
            for n, (word, depth) in enumerate(zip(words, depths, strict=True))
        ]
        if path == "/v1/generate":
            return {**common, "output": " ".join(words), "tokens": tokens, "finish_reason": "stop"}
        if path == "/v1/classify":
            return {**common, "label": "good", "scores": {"good": 0.9, "bad": 0.1}, "tokens": tokens}
        if path == "/v1/tag":
            tagged = [{"text": word, "tag": "NOUN", "depth": depth} for word, depth in zip(words, depths, strict=True)]
            return {**common, "words": tagged}
        context = body["context"]
        start = context.index("blue")
        return {**common, "answer": "blue", "start": start, "end": start + 4, "score": 0.5, "tokens": tokens}


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer

    def log_message(self, *_: Any) -> None:
        pass

    def send(self, status: int, content: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def tell(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send(status, json.dumps(content).encode(), "application/json", headers)

    def refused(self) -> bool:
        fake, refusal = self.fake, self.fake.refusal
        if fake.key is not None and self.headers.get("Authorization") != f"Bearer {fake.key}":
            refusal = Refusal(401, "this server wants an API key", "send it as Authorization: Bearer KEY")
        if refusal is None:
            return False
        error = {"type": "refused", "message": refusal.message}
        self.tell(
            {"error": error | ({"remedy": refusal.remedy} if refusal.remedy else {})}, refusal.status, refusal.headers
        )
        return True

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            if not self.refused():
                self.tell({"models": self.fake.models})
            return
        file = PLAYGROUND / ("index.html" if self.path == "/" else self.path.removeprefix("/assets/"))
        if file.is_file():
            self.send(200, file.read_bytes(), TYPES[file.suffix])
        else:
            self.tell({"error": {"type": "not_found", "message": "there is no such page"}}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.fake.asked.append(body)
        if self.refused():
            return
        answer = self.fake.answer(self.path, body)
        if not body.get("stream"):
            time.sleep(self.fake.pause)
            self.tell(answer)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for event, data in self.events(answer):
                self.wfile.write(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())
                self.wfile.flush()
                time.sleep(self.fake.pause)
        except OSError:  # whoever asked has gone
            pass

    def events(self, answer: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for number, token in enumerate(answer["tokens"]):
            if number == self.fake.cut_after:
                return
            if number == self.fake.error_after:
                yield "error", {"error": {"type": "timeout", "message": "the time of this request is over"}}
                return
            yield "token", token
        yield "done", answer
