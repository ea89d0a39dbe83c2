"""The server as a process: it starts, says where it is, and when it is told to stop, first finishes its work."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from depthwise.cli.main import main
from depthwise.cli.serve import CACHES, NUM_CACHED
from depthwise.errors import InputError
from depthwise.serving.options import ServingOptions
from depthwise.serving.server import serve

from .conftest import CLIENT, LONG, NO_SECRETS, SOON, Start, until

NUM_NEW = 300


class Process:
    """``depthwise serve`` with runs."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        command = [sys.executable, "-m", "depthwise", "serve", *map(str, arguments), "--device", "cpu", "--port", "0"]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        match = re.fullmatch(r"serving (.+) at (http://\S+)\n", told)
        assert match is not None, told + self.process.communicate(timeout=SOON)[1]
        self.names, self.url = match[1], match[2]

    def post(self, path: str, **body: Any) -> httpx2.Response:
        return CLIENT.post(self.url + path, json=body)

    def stop(self, kind: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(kind)
        _, errors = self.process.communicate(timeout=SOON)
        return self.process.returncode, errors


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command sets in it is gone after a test."""
    for name in CACHES:
        monkeypatch.setenv(name, NUM_CACHED)


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    found: list[Process] = []
    yield found
    for each in found:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate(timeout=SOON)


def test_stopping_under_load(runs: dict[str, Path], processes: list[Process]) -> None:
    """What was accepted is answered in full, what comes later is told to go elsewhere, and all ends well."""
    server = Process(f"endless={runs['long']}", runs["classes"], "--max-rows", 4)
    processes.append(server)
    assert server.names == "endless, classes"
    assert server.url.startswith("http://127.0.0.1:")
    is_over, refused = threading.Event(), threading.Event()
    outcomes: list[str] = []

    def long(streams: bool) -> str:
        response = server.post("/v1/generate", input="a", max_new_tokens=NUM_NEW, stream=streams)
        if response.status_code != 200:
            return str(response.status_code)
        whole = response.text.count("event: done") == 1 if streams else len(response.json()["tokens"]) == NUM_NEW
        return "whole" if whole else "cut"

    def short() -> None:
        while not is_over.wait(0.02):
            try:
                response = server.post("/v1/classify", input="a b c")
            except httpx2.TransportError:
                outcomes.append("closed")
                return
            outcomes.append(str(response.status_code))
            if response.status_code == 503:
                assert response.json()["error"]["type"] == "shutting_down"
                assert response.headers["retry-after"] == "1"
                refused.set()

    with ThreadPoolExecutor(12) as pool:
        accepted = [pool.submit(long, place % 2 == 0) for place in range(8)]
        others = [pool.submit(short) for _ in range(3)]
        until(lambda: outcomes.count("200") > 5)
        metrics = CLIENT.get(server.url + "/metrics").text
        assert 'depthwise_running{model="endless"} 4.0' in metrics
        assert 'depthwise_waiting{model="endless"} 4.0' in metrics
        server.process.send_signal(signal.SIGTERM)
        assert refused.wait(SOON)
        assert CLIENT.get(server.url + "/ready").status_code == 503
        assert CLIENT.get(server.url + "/health").status_code == 200
        assert [each.result(SOON) for each in accepted] == ["whole"] * 8
        _, errors = server.process.communicate(timeout=SOON)
        is_over.set()
        for each in others:
            each.result(SOON)
    assert server.process.returncode == 0
    assert "Traceback" not in errors
    assert re.search(r"stopping: \d+ requests are being answered", errors)
    assert set(outcomes) <= {"200", "503", "closed"}


def test_an_idle_server_stops_at_once(runs: dict[str, Path], processes: list[Process]) -> None:
    """Also by Ctrl-C, and with clients that are connected but silent. Its log has no text, and the key holds."""
    server = Process(runs["tags"], DEPTHWISE_API_KEY="key")
    processes.append(server)
    assert server.post("/v1/tag", input="my secret").status_code == 401
    with httpx2.Client(
        base_url=server.url, headers={"authorization": "Bearer key"}, timeout=SOON, verify=NO_SECRETS
    ) as client:
        assert client.post("/v1/tag", json={"input": "my secret"}).status_code == 200
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))):
            began = time.monotonic()
            code, errors = server.stop(signal.SIGINT)
    assert (code, time.monotonic() - began < 10) == (0, True)
    assert "POST /v1/tag 200 ok" in errors
    assert "secret" not in errors


def test_a_second_signal_does_not_wait(start: Start) -> None:
    live = start("long", limits={"new_tokens": LONG, "waiting": 100}, max_rows=1)
    with ThreadPoolExecutor(24) as pool:
        asked = [pool.submit(live.post, "/v1/generate", input="a", max_new_tokens=LONG) for _ in range(24)]
        until(lambda: live.hub.models["long"].num_waiting == 23)
        live.server.handle_exit(signal.SIGTERM, None)
        until(lambda: live.get("/ready").status_code == 503)
        assert not live.server.should_exit
        live.server.handle_exit(signal.SIGTERM, None)
        failed = [each for each in asked if each.exception(SOON) is not None or each.result().status_code != 200]
        assert failed
    served: Any = live.hub.models["long"]
    for queue in served._queues.values():
        queue.close(finish=False)


def run_command(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["depthwise", *map(str, arguments)])
    with pytest.raises(SystemExit) as raised:
        main()
    return int(raised.value.code or 0)


def test_mistakes_of_whoever_starts_it(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def errors_of(*arguments: object) -> str:
        assert run_command("serve", *arguments, monkeypatch=monkeypatch) == 1
        return capsys.readouterr().err

    assert "is no folder; give the folder of a run" in errors_of(tmp_path / "none")
    assert 'two runs would be called "x"' in errors_of(f"x={runs['tags']}", f"x={runs['classes']}")
    assert "lets nothing be answered" in errors_of(runs["tags"], "--max-seconds", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port} cannot be listened at" in errors_of(runs["tags"], "--port", port)
    monkeypatch.setenv("DEPTHWISE_API_KEY", " ")
    assert "the API key is empty" in errors_of(runs["tags"])
    assert run_command("serve", monkeypatch=monkeypatch) == 2


def test_a_run_that_cannot_be_loaded_ends_the_server(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the sentence that says why."""
    told: list[str] = []
    with pytest.raises(InputError, match='has no calibrated setting "nothing"'):
        serve({"tags": runs["tags"]}, ServingOptions(depth="nothing", device="cpu"), port=0, on_ready=told.append)
    assert told == []


def test_code_for_shapes_is_not_kept_forever(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless the user has said how much of it is."""
    monkeypatch.delenv("LRU_CACHE_CAPACITY")
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    assert run_command("serve", tmp_path / "none", monkeypatch=monkeypatch) == 1
    assert [os.environ[name] for name in CACHES] == ["7", NUM_CACHED]


def test_packages_that_are_missing(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("depthwise.serving.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert run_command("serve", runs["tags"], monkeypatch=monkeypatch) == 1
    assert (
        "serving needs fastapi, which is not installed; run pip install 'depthwise[serve]'" in capsys.readouterr().err
    )
