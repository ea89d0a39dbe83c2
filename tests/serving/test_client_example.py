"""``examples/client.py`` against a server that says what it should."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..scripts import loaded
from .fake_server import SETTING, FakeServer, Refusal

FILE = Path(__file__).parents[2] / "examples" / "client.py"


@pytest.fixture(scope="module")
def example() -> Any:
    return loaded("examples/client.py")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    found = FakeServer()
    yield found
    found.close()


def test_answers(example: Any, server: FakeServer) -> None:
    server.key = "secret"
    client = example.Client(server.address, "secret")
    assert [model["name"] for model in client.models()] == ["numbers"]
    found = client.generate("1 2 3", depth=2, max_new_tokens=9, model="numbers")
    assert found["output"] == "1 2 3"
    assert [token["depth"] for token in found["tokens"]] == [2, 2, 2]
    assert server.asked[-1] == {"input": "1 2 3", "depth": 2, "max_new_tokens": 9, "model": "numbers"}
    assert client.ask("/v1/classify", {"model": "mood", "input": "well", "depth": "full"})["label"] == "good"


def test_tokens_as_they_come(example: Any, server: FakeServer) -> None:
    found = list(example.Client(server.address).stream("é 2", depth=SETTING, model="numbers"))
    assert [kind for kind, _ in found] == ["token", "token", "done"]
    assert [told["text"] for kind, told in found if kind == "token"] == ["é", " 2"]
    assert found[-1][1]["output"] == "é 2"
    server.error_after = 1
    with pytest.raises(example.ServerError, match="the time of this request is over"):
        list(example.Client(server.address).stream("1 2", depth=1, model="numbers"))


def test_what_is_refused(example: Any, server: FakeServer) -> None:
    server.refusal = Refusal(422, "no token can leave at depth 9", "ask for one of 1, 2")
    with pytest.raises(example.ServerError, match="no token can leave at depth 9; ask for one of 1, 2") as caught:
        example.Client(server.address).generate("1", depth=9)
    assert caught.value.status == 422
    assert len(server.asked) == 1


def test_a_busy_server_is_asked_again(example: Any, server: FakeServer) -> None:
    server.refusal = Refusal(503, "too many wait", headers={"Retry-After": "0"})
    with pytest.raises(example.ServerError, match="too many wait"):
        example.Client(server.address, attempts=2).generate("1", depth="full", model="numbers")
    assert len(server.asked) == 2
    server.refusal = Refusal(503, "too many wait", headers={"Retry-After": "1"})
    timer = threading.Timer(0.3, lambda: setattr(server, "refusal", None))
    timer.start()
    assert example.Client(server.address).generate("1", depth="full", model="numbers")["output"] == "1"
    timer.join()
    assert len(server.asked) == 4


def test_the_command(server: FakeServer) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, str(FILE), *arguments], capture_output=True, text=True, timeout=60)

    done = run("1 2", "--address", server.address, "--depth", "2", "--stream")
    assert done.stdout.splitlines() == ["  2 '1'", "  2 ' 2'", "1 2", "4 of 8 layers (2.00 of 4 per token) in 540 ms"]
    server.close()
    gone = run("1 2", "--address", server.address)
    assert gone.returncode == 1
    assert "depthwise serve RUN" in gone.stderr
    assert "Traceback" not in gone.stderr
