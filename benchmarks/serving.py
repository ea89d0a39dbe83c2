"""How many requests a second a server answers in time: full depth, a calibrated setting, and a plain server beside it.

    python benchmarks/serving.py runs/demo                                 # the texts of its test data
    python benchmarks/serving.py runs/demo --texts mine.txt --p95 0.05 0.25 --seconds 10 --json serving.json

Starts ``depthwise serve`` on the run, and a plain FastAPI server around Transformers' ``generate`` for the same run
(``plain_server.py``), on 127.0.0.1. Texts arrive by chance, in a mixture of lengths, without waiting for each other
(``open_loop.py``); each rate lasts a fixed time. For each way the highest rate at which 95 % of the answers come within
the bound is searched, so that throughputs are those at the same latency. Ways take turns at rising rates, and only one
of them has anything to do at a time, so that neighbours on the machine slow all of them alike: compare numbers of one
call with each other, not with those of another; on a busy machine give more ``--attempts`` of fewer ``--seconds``.
Everything ends in the given time, servers included.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from open_loop import Load, Search, offer, work_of
from rich.console import Console
from rich.table import Table

STARTING, ENDING = 120.0, 20.0
"""Seconds that a server may take to be ready, and to end."""
WARM_UP = 2.0
COMPARED = 100
"""Texts whose answers by the plain server and at full depth are compared."""
FULL, PLAIN = "full", "plain"


@dataclass(frozen=True)
class Way:
    """One row of the table: an address, and what is sent there besides the text."""

    name: str
    path: str
    extra: dict[str, Any]

    def content(self, text: str) -> bytes:
        return json.dumps({"input": text, **self.extra}).encode()


@dataclass(frozen=True)
class Server:
    """A server that was started here."""

    address: str
    process: "subprocess.Popen[bytes]"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=10) as reply:
            return json.load(reply)

    def processor_seconds(self) -> float:
        """Seconds of processors that the server has used; unlike those of the clock, neighbours change them little."""
        file = Path(f"/proc/{self.process.pid}/stat")
        if not file.exists():
            return float("nan")
        user, system = file.read_text().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def running(command: Sequence[str], port: int, threads: int) -> Iterator[Server]:
    """A server from when it is ready; it is ended in any case."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log, env=environment)
        server = Server(f"http://127.0.0.1:{port}", process)
        try:
            if not is_ready(server):
                log.seek(0)
                said = log.read().decode(errors="replace")[-2000:]
                raise SystemExit(f"the server did not start: {' '.join(command)}\n{said}")
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def is_ready(server: Server) -> bool:
    until = time.monotonic() + STARTING
    while time.monotonic() < until and server.process.poll() is None:
        try:
            server.get("/ready")
            return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    return False


def texts_of(run: Path, given: Path | None, most: int, seed: int) -> list[str]:
    """Texts to send: the given file's lines, or the sources of the run's test data."""
    if given is None:
        data = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))["data"]
        name = (data.get("test") or data.get("valid") or [""])[0]
        possible = Path(name), Path(f"{name}.{data.get('source')}")
        given = next((path for path in possible if path.is_file()), None)
        if given is None:
            raise SystemExit(f"the test data of {run} is not here; give a file of texts: --texts FILE")
    lines = [line.strip() for line in given.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise SystemExit(f"{given} holds no text; give a file with one text on each line")
    random.Random(seed).shuffle(lines)
    return lines[:most]


def setting_of(server: Server, asked: str | None) -> str:
    """The calibrated setting to measure: the one asked for, else the run's default, else its only one."""
    (model,) = server.get("/v1/models")["models"]
    if model["kind"] != "generate":
        raise SystemExit(f"{model['name']} writes no text (it is there to {model['kind']}); give a run that does")
    depths = model["depths"]
    names = [setting["name"] for setting in depths["settings"]]
    if asked is None and depths.get("default") in names:
        asked = depths["default"]
    chosen = names[0] if asked is None and len(names) == 1 else asked
    if chosen not in names:
        known = f"give one of {', '.join(names)} by --setting" if names else "make one: depthwise calibrate RUN"
        raise SystemExit(f"which calibrated setting? {known}")
    return chosen


def outputs(server: Server, way: Way, texts: Sequence[str]) -> list[str]:
    """Answers one after the other, to compare them."""
    found = []
    for text in texts:
        request = urllib.request.Request(
            server.address + way.path, way.content(text), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            found.append(json.load(reply)["output"])
    return found


@dataclass(frozen=True)
class Lane:
    """One way on its server, and how far the search has come."""

    server: Server
    way: Way
    search: Search

    def take_turn(self, options: argparse.Namespace, contents: Sequence[bytes]) -> tuple[Load, float]:
        """The next rate of the search, and the processor seconds of the server for each answer."""
        assert self.search.rate is not None
        before = self.server.processor_seconds()
        seed = options.seed + self.search.attempt
        address = self.server.address + self.way.path
        load = asyncio.run(offer(address, contents, self.search.rate, options.seconds, self.search.bound, seed))
        self.search.add(load)
        return load, (self.server.processor_seconds() - before) / max(1, load.answered)


def measured(lanes: Sequence[Lane], options: argparse.Namespace, texts: Sequence[str], console: Console) -> Any:
    """The best load of every way, and all that were tried. Ways take turns, so that neighbours slow all of them."""
    contents = {lane.way.name: [lane.way.content(text) for text in texts] for lane in lanes}
    costs: dict[int, float] = {}
    for lane in lanes:
        first = options.start
        asyncio.run(
            offer(lane.server.address + lane.way.path, contents[lane.way.name], first, WARM_UP, 1.0, options.seed)
        )
    until = time.monotonic() + 60 * options.minutes
    while time.monotonic() < until and any(lane.search.rate is not None for lane in lanes):
        for lane in lanes:
            if lane.search.rate is None:
                continue
            load, cost = lane.take_turn(options, contents[lane.way.name])
            costs[id(load)] = cost
            console.print(
                f"  {lane.way.name:12} {load.rate:8.1f}/s offered, {load.throughput:8.1f}/s answered, "
                f"p95 {1000 * load.p95:7.1f} ms, {1000 * cost:6.2f} CPU ms each"
                f"{'' if load.keeps(lane.search.bound) else ', too slow'}"
                f"{f', {load.refused} refused' if load.refused else ''}"
            )
    return [row_of(lane, costs) for lane in lanes]


def row_of(lane: Lane, costs: dict[int, float]) -> dict[str, Any]:
    best, search = lane.search.best, lane.search
    row = {"way": lane.way.name, "bound": search.bound, "request": lane.way.extra, "is_finished": search.rate is None}
    row["tried"] = [level(load, costs) for load in search.tried]
    return {**row, "best": None if best is None else level(best, costs) | work_of(best.bodies)}


def level(load: Load, costs: dict[int, float]) -> dict[str, Any]:
    numbers = {name: value for name, value in vars(load).items() if name != "bodies"}
    return numbers | {"throughput": load.throughput, "processor_seconds_per_request": costs[id(load)]}


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    heads = ["requests/s", "tokens/s", "p50 ms", "p95 ms", "p99 ms", "layers of full", "CPU ms/request", "against it"]
    table = Table("way", *heads)
    adaptive = next((row["best"] for row in rows if row["way"] not in (FULL, PLAIN)), None)
    for row in rows:
        best = row["best"]
        if best is None:
            table.add_row(row["way"], "none kept", *[""] * (len(heads) - 1))
            continue
        layers = best["token_layers"] / best["full_token_layers"] if best["full_token_layers"] else 1.0
        ratio = adaptive["throughput"] / best["throughput"] if adaptive else float("nan")
        table.add_row(
            row["way"],
            f"{best['throughput']:.1f}",
            f"{best['tokens'] / best['seconds']:.0f}" if best["seconds"] else "",
            *(f"{1000 * best[name]:.1f}" for name in ("p50", "p95", "p99")),
            f"{layers:.2f}",
            f"{1000 * best['processor_seconds_per_request']:.2f}",
            f"{ratio:.2f}×",
        )
    return table


def compared(servers: Sequence[Server], ways: Sequence[Way], texts: Sequence[str]) -> float:
    """The share of texts that the last of the ways, the plain one, answers as the first does."""
    ours, theirs = outputs(servers[0], ways[0], texts), outputs(servers[-1], ways[-1], texts)
    return sum(one == other for one, other in zip(ours, theirs, strict=True)) / len(texts)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--texts", type=Path, help="a file with one text on each line")
    parser.add_argument("--most-texts", type=int, default=2000)
    parser.add_argument("--setting", help="calibrated setting; the run's default unless given")
    parser.add_argument(
        "--p95", type=float, nargs="+", default=[0.25], help="seconds within which 95 %% of answers have to come"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each rate lasts")
    parser.add_argument("--start", type=float, default=16.0, help="the first rate, in requests a second")
    parser.add_argument("--step", type=float, default=1.19, help="from one rate to the next")
    parser.add_argument("--attempts", type=int, default=2, help="how often a rate may be tried")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for each bound, at most")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="of each server")
    parser.add_argument("--no-plain", action="store_true", help="leave the plain server out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    options, console = arguments(), Console(width=140, highlight=False)
    texts = texts_of(options.run, options.texts, options.most_texts, options.seed)
    lengths, rows, same = sorted(len(text) for text in texts), [], None
    console.print(f"{len(texts):,} texts of {lengths[0]} to {lengths[-1]} characters")
    with ExitStack() as stack:
        port, threads = free_port(), str(options.threads)
        command = ["-m", "depthwise", "serve", str(options.run), "--port", str(port), "--quiet"]
        server = stack.enter_context(running(command, port, options.threads))
        setting, limit = setting_of(server, options.setting), {"max_new_tokens": options.max_new_tokens}
        ways = [Way(name, "/v1/generate", {"depth": name, **limit}) for name in (FULL, setting)]
        servers = [server, server]
        if not options.no_plain:
            port = free_port()
            plain = [str(Path(__file__).with_name("plain_server.py")), str(options.run)]
            command = [*plain, "--port", str(port), "--threads", threads]
            servers.append(stack.enter_context(running(command, port, options.threads)))
            ways.append(Way(PLAIN, "/generate", limit))
            same = compared(servers, ways, texts[:COMPARED])
            console.print(f"answers of the plain server that are those of full depth, to the letter: {same:.0%}")
        for bound in options.p95:
            lanes = [
                Lane(each, way, Search(bound, options.start, options.step, options.attempts))
                for each, way in zip(servers, ways, strict=True)
            ]
            rows += (found := measured(lanes, options, texts, console))
            console.print(f"95 % of the answers within {1000 * bound:g} ms:", table_of(found), sep="\n")
    if options.json is not None:
        given = {name: value for name, value in vars(options).items() if name != "json"}
        found = {"options": given, "same_answers": same, "rows": rows}
        options.json.write_text(json.dumps(found, indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
