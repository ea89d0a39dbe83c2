"""``benchmarks/open_loop.py`` and ``benchmarks/serving.py``: arrivals, latencies and the search for a rate."""

import asyncio
import importlib
import json
import math
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvicorn

FOLDER = Path(__file__).parents[2] / "benchmarks"
SMALL_SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404 if self.path == "/missing" else 200)
        self.end_headers()
        self.wfile.write(b"{}")

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[Any]:
    """Gives modules of the folder by their names."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def open_loop(benchmarks: Any) -> Any:
    return benchmarks("open_loop")


class Slow(BaseHTTPRequestHandler):
    """Answers one request at a time, each after 20 ms, but refuses those that say so."""

    protocol_version = "HTTP/1.1"
    turn = threading.Lock()

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        with self.turn:
            time.sleep(0.02)
        content = json.dumps({"tokens": [1, 2], "cost": {"token_layers": 3, "full_token_layers": 8}}).encode()
        self.send_response(503 if text == "busy" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/generate"
    server.shutdown()
    server.server_close()
    thread.join()


def offered(open_loop: Any, address: str, text: str, rate: float, seconds: float = 1.0) -> Any:
    content = json.dumps({"input": text}).encode()
    return asyncio.run(open_loop.offer(address, [content], rate, seconds, 0.5, 0))


def test_arrivals_are_a_poisson_process(open_loop: Any) -> None:
    found = open_loop.arrivals(50.0, 400.0, seed=1)
    gaps = [late - early for early, late in pairwise(found)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert len(found) == pytest.approx(20_000, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.05)  # as exponential gaps have it
    assert found == open_loop.arrivals(50.0, 400.0, seed=1) != open_loop.arrivals(50.0, 400.0, seed=2)
    assert 0 < found[0] < found[-1] < 400


def test_percentiles(open_loop: Any) -> None:
    values = [float(n) for n in range(1, 101)]
    assert [open_loop.percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert open_loop.percentile([3.0], 0.95) == 3.0
    assert open_loop.percentile([], 0.5) == math.inf


def test_a_light_load_is_kept(open_loop: Any, address: str) -> None:
    load = offered(open_loop, address, "well", 10.0)
    assert load.answered == load.offered > 3
    assert load.refused == 0
    assert 0.02 <= load.p50 <= load.p95 <= load.p99
    assert load.keeps(0.5)
    assert load.throughput == pytest.approx(load.answered / load.seconds)
    assert open_loop.work_of(load.bodies) == {
        "tokens": 2 * load.answered,
        "token_layers": 3 * load.answered,
        "full_token_layers": 8 * load.answered,
    }


def test_waiting_counts_from_when_a_request_was_due(open_loop: Any, address: str) -> None:
    """At three times what the server can do the wait grows, whatever a single answer takes; and the rest stays away."""
    load = offered(open_loop, address, "well", 150.0, 2.0)
    assert not load.keeps(0.5)
    assert load.p95 == math.inf
    assert load.answered < load.offered
    assert load.throughput < 60


def test_refusals_are_no_answers(open_loop: Any, address: str) -> None:
    load = offered(open_loop, address, "busy", 10.0)
    assert load.answered == 0
    assert load.refused > 0
    assert not load.keeps(0.5)


def test_nobody_there(open_loop: Any) -> None:
    load = offered(open_loop, "http://127.0.0.1:9/", "well", 10.0)
    assert load.answered == load.refused == 0
    assert load.p50 == math.inf


def searched(open_loop: Any, capacity: float, lateness: tuple[float, ...] = (), attempts: int = 2) -> Any:
    """A search on a server that answers so many requests a second, always late at some rates."""
    search = open_loop.Search(0.25, 16.0, 1.19, attempts)
    while search.rate is not None:
        assert len(search.tried) < 200
        is_late = search.rate > capacity or any(math.isclose(search.rate, each) for each in lateness)
        answered = round(100 * min(search.rate, capacity))
        offered = round(100 * search.rate)
        search.add(open_loop.Load(search.rate, offered, answered, 0, 100.0, 0.1, 0.3 if is_late else 0.2, 0.4))
    return search


@pytest.mark.parametrize("capacity", [16.0, 137.0, 5000.0])
@pytest.mark.parametrize("attempts", [1, 2])
def test_the_search_finds_the_highest_rate(open_loop: Any, capacity: float, attempts: int) -> None:
    search = searched(open_loop, capacity, attempts=attempts)
    assert capacity / 1.19 < search.best.rate <= capacity
    above = [load.rate for load in search.tried if load.is_behind]
    assert len(above) == open_loop.ENOUGH * attempts
    assert min(above) > capacity / open_loop.BEHIND


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_busy_moment_does_not_end_the_search(open_loop: Any, attempts: int) -> None:
    search = searched(open_loop, 137.0, tuple(16.0 * 1.19**n for n in range(8)), attempts)
    assert 137.0 / 1.19 < search.best.rate <= 137.0


def test_the_search_gives_up(open_loop: Any) -> None:
    search = searched(open_loop, 3.0)
    assert search.best is None
    assert len(search.tried) == 2 * open_loop.ENOUGH


def test_texts(benchmarks: Any, tmp_path: Path) -> None:
    serving = benchmarks("serving")
    (tmp_path / "test.de").write_text("eins\n\n zwei \ndrei\n", encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(f"data: {{test: [{tmp_path}/test.de, x]}}\n")
    assert sorted(serving.texts_of(tmp_path, None, 9, 0)) == ["drei", "eins", "zwei"]
    assert len(serving.texts_of(tmp_path, None, 2, 0)) == 2
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(SystemExit, match="holds no text"):
        serving.texts_of(tmp_path, tmp_path / "empty", 9, 0)
    (tmp_path / "test.de").unlink()
    with pytest.raises(SystemExit, match="--texts FILE"):
        serving.texts_of(tmp_path, None, 9, 0)


def test_a_server_is_ended_whatever_happens(benchmarks: Any) -> None:
    serving = benchmarks("serving")
    port = serving.free_port()
    command = ["-c", SMALL_SERVER, str(port)]
    with pytest.raises(urllib.error.HTTPError, match="404"), serving.running(command, port, 1) as server:
        server.get("/missing")
    assert server.process.returncode is not None
    with (
        pytest.raises(SystemExit, match=r"did not start.*\n.*what a pity"),
        serving.running(["-c", "raise SystemExit('what a pity')"], port, 1),
    ):
        raise AssertionError("it is not ready")


def test_the_table(benchmarks: Any) -> None:
    serving = benchmarks("serving")
    best = {"throughput": 90.0, "tokens": 900, "seconds": 3.0, "p50": 0.01, "p95": 0.02, "p99": 0.03}
    work = {"token_layers": 30, "full_token_layers": 90, "processor_seconds_per_request": 0.004}
    plain = {**best, **work, "throughput": 20.0, "token_layers": 0, "full_token_layers": 0}
    rows = [
        {"way": "full", "best": {**best, **work, "throughput": 60.0, "token_layers": 90}},
        {"way": "drop-0.5", "best": {**best, **work}},
        {"way": "plain", "best": plain},
        {"way": "hopeless", "best": None},
    ]
    columns = [list(column.cells) for column in serving.table_of(rows).columns]
    assert columns[0] == ["full", "drop-0.5", "plain", "hopeless"]
    assert columns[1] == ["60.0", "90.0", "20.0", "none kept"]
    assert columns[6] == ["1.00", "0.33", "1.00", ""]
    assert columns[8] == ["1.50×", "1.00×", "4.50×", ""]


def test_help() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "serving.py"), "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "95 % of answers" in done.stdout


def test_the_plain_server_answers_as_full_depth(benchmarks: Any, runs: dict[str, Path], live: Any) -> None:
    app = benchmarks("plain_server").build(str(runs["translate"]))
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
    thread.start()
    try:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/generate"
        for text in ("a b c", "b"):
            content = json.dumps({"input": text, "max_new_tokens": 3}).encode()
            request = urllib.request.Request(address, content, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as reply:
                theirs = json.load(reply)
            ours = live.post("/v1/generate", model="translate", input=text, depth="full", max_new_tokens=3).json()
            assert theirs["tokens"] == [token["id"] for token in ours["tokens"]]
            assert theirs["output"] == ours["output"]
    finally:
        server.should_exit = True
        thread.join()
