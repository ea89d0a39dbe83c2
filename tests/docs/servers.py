"""``depthwise serve`` in a process of its own, at a port that is free, under the address that a page knows it by."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from .calling import Failed

LONG = 120.0
"""Seconds that anything may take; slow machines are waited for."""
ASKED: Mapping[str, tuple[str, dict[str, str]]] = {
    "generate": ("/v1/generate", {"input": "a film"}),
    "classify": ("/v1/classify", {"input": "a film"}),
    "tag": ("/v1/tag", {"input": "a film"}),
    "answer": ("/v1/answer", {"question": "What was terrible?", "context": "The end was terrible."}),
}
"""A request for every kind of model."""
HERE = ("localhost", "127.0.0.1")


class Server:
    """A server that is ready. Whoever starts it stops it."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.command = f"depthwise serve {' '.join(arguments)}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "depthwise", "serve", *arguments, "--device", "cpu", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        found = re.fullmatch(r"serving .+ at (http://\S+)\n", told)
        if found is None:
            raise Failed(f"{self.command}: {told}{self.process.communicate(timeout=LONG)[1]}")
        self.url = found[1]

    def ask_all(self) -> None:
        """One request to each of its models."""
        for model in json.loads(answer(f"{self.url}/v1/models"))["models"]:
            path, body = ASKED[model["kind"]]
            answer(self.url + path, json.dumps({**body, "model": model["name"]}).encode())

    def stop(self) -> None:
        """Told to stop, it ends with 0."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=LONG)
        if self.process.returncode:
            raise Failed(f"{self.command}: ended with {self.process.returncode}: {errors}")

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


class Servers:
    """Those of one page, by the ports that it names."""

    def __init__(self) -> None:
        self.at: dict[int, Server] = {}

    def start(self, arguments: Sequence[str], port: int) -> None:
        """A server takes the place of an earlier one at the same port, as when that was ended before."""
        if port in self.at:
            self.at.pop(port).stop()
        self.at[port] = Server(arguments)
        self.at[port].ask_all()

    def address(self, given: str) -> str:
        """Where the server really is that a page has at this address."""
        parts = urlsplit(given if "//" in given else f"http://{given}")
        if parts.hostname not in HERE or parts.port is None:
            raise Failed(f"{given}: ask a server at localhost:PORT")
        if parts.port not in self.at:
            raise Failed(f"{given}: no server listens there; start it before: depthwise serve RUN")
        return self.at[parts.port].url + parts.path

    def stop(self) -> None:
        while self.at:
            self.at.popitem()[1].stop()

    def kill(self) -> None:
        for server in self.at.values():
            server.kill()


def answer(url: str, content: bytes | None = None, headers: Mapping[str, str] | None = None) -> str:
    """The body of an answer that is fine."""
    given: dict[str, Any] = {"Content-Type": "application/json", **(headers or {})}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, content, given), timeout=LONG) as reply:
            body: bytes = reply.read()
    except urllib.error.HTTPError as error:
        raise Failed(f"{url} answered {error.code}: {error.read().decode()}") from None
    return body.decode()


def same_keys(shown: Any, found: Any) -> bool:
    """Whether an answer has the keys that a page shows, lists by their first element."""
    if isinstance(shown, dict):
        if not isinstance(found, dict) or shown.keys() != found.keys():
            return False
        return all(same_keys(shown[key], found[key]) for key in shown)
    if isinstance(shown, list) and shown:
        return isinstance(found, list) and (not found or same_keys(shown[0], found[0]))
    return True
