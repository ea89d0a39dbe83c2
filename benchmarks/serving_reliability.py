"""Whether a server keeps its word under many clients, good and bad ones: answers, refusals, memory, health.

    python benchmarks/serving_reliability.py runs/demo                       # 10,000 requests of 64 clients
    python benchmarks/serving_reliability.py runs/demo runs/mine --requests 2000 --json reliability.json

Starts ``depthwise serve`` on the runs. First every good request is sent by itself; then all clients send good and bad
ones in a random mixture: oversized, malformed, of wrong types, no UTF-8, for unknown models, at negative depths, from
clients that leave in mid-stream. Every good one has to get the answer that it got alone, every bad one a 4xx with a
reason, none a 5xx; memory may not grow by more than 5 % once a tenth of all requests is done. In float32, answers may
differ from a tie on: where the scores of the tokens that differ first are nearer than ``--margin``.

A run that writes text is asked at full depth, at each exit and at each calibrated setting, whole and streamed, greedy,
sampled and by beams; one that reads text at each of these depths. Ends with exit code 1 where a promise is broken.
"""

import argparse
import asyncio
import json
import random
import resource
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from serving import Server, free_port, running

from depthwise.data import LineReport, LineRules
from depthwise.errors import DepthwiseError
from depthwise.evaluation import open_run

JSON = b"Content-Type: application/json\r\n"
PATHS = {"generate": "/v1/generate", "classify": "/v1/classify", "tag": "/v1/tag", "answer": "/v1/answer"}
SHARE_OF_BAD = 0.3
MOST_GROWTH = 0.05
BODY = 256 * 1024


@dataclass(frozen=True)
class Good:
    """A request that has to be answered, always in the same way."""

    path: str
    body: dict[str, Any]

    @property
    def content(self) -> bytes:
        return json.dumps(self.body).encode()


@dataclass(frozen=True)
class Bad:
    """A request that has to be refused, or that nobody waits for."""

    name: str
    path: str
    content: bytes
    head: bytes = JSON
    method: bytes = b"POST"
    leaves: bool = False


@dataclass
class Tally:
    """What became of all requests."""

    statuses: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    mistakes: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def wrong(self, what: str) -> None:
        self.outcomes["wrong"] += 1
        if len(self.mistakes) < 20:
            self.mistakes.append(what[:300])


# What is asked


def good_requests(model: dict[str, Any], inputs: Sequence[tuple[str, ...]], chance: random.Random) -> list[Good]:
    """Every input at some depth, in some way that the model has."""
    names = [setting["name"] for setting in model["depths"]["settings"]]
    depths: list[Any] = ["full", *model["depths"]["fixed"], *names, *names]
    found = []
    for texts in inputs:
        body: dict[str, Any] = {"model": model["name"], "depth": chance.choice(depths)}
        if model["kind"] == "generate":
            body |= {"input": texts[-1], **({"to": texts[0]} if model["languages"] and len(texts) == 2 else {})}
            ways: list[dict[str, Any]] = [{}, {}, {"stream": True}, {"temperature": 1.0, "seed": 7}, {"num_beams": 3}]
            body |= {**chance.choice(ways), "max_new_tokens": 40}
        elif model["kind"] == "answer":
            body |= {"question": texts[0], "context": texts[1]}
        else:
            body |= {"input": texts[0], **({"pair": texts[1]} if model["pair"] else {})}
        found.append(Good(PATHS[model["kind"]], body))
    return found


def bad_requests(good: Sequence[Good]) -> list[Bad]:
    """Every kind of mistake, at every address that there is something at."""
    found = []
    for path in sorted({each.path for each in good}):
        first = next(each for each in good if each.path == path)
        whole, text = first.content, "context" if path == "/v1/answer" else "input"

        def changed(*, body: dict[str, Any] = first.body, **changes: Any) -> bytes:
            return json.dumps({**body, **changes}).encode()

        contents = {
            "oversized": changed(**{text: "a" * (BODY + 1)}),
            "half of it": whole[: len(whole) // 2],
            "empty": b"",
            "no UTF-8": whole.replace(b'"model"', b'"\xff\xfe"'),
            "nested": b"[" * 50_000,
            "NaN": b'{"temperature": NaN}',
            "digits": b'{"seed": ' + b"9" * 10_000 + b"}",
            "wrong type": changed(**{text: {"a": 1}}),
            "number in quotes": changed(depth=["2"]),
            "unknown name": changed(nobody_knows_this=1),
            "unknown model": changed(model="nobody"),
            "negative depth": changed(depth=-1),
            "unknown setting": changed(depth="nowhere"),
            "half a character": whole.replace(b'"model"', b'"\\ud800"'),
            "a list": b"[]",
        }
        found += [Bad(name, path, content) for name, content in contents.items()]
        found.append(Bad("no JSON type", path, whole, head=b"Content-Type: text/plain\r\n"))
        found.append(Bad("wrong method", path, b"", method=b"GET"))
        found.append(Bad("leaves at once", path, whole, leaves=True))
        if path == PATHS["generate"]:
            streams = {name: value for name, value in first.body.items() if name != "num_beams"}
            found += [
                Bad("leaves in mid-stream", path, json.dumps({**streams, "stream": True}).encode(), leaves=True)
            ] * 3
    found.append(Bad("unknown address", "/v1/nothing", b"{}"))
    return found


# Asking


class Client:
    """One connection after the other, kept as long as the server keeps it."""

    def __init__(self, address: str) -> None:
        self.host, _, self.port = address.removeprefix("http://").partition(":")
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, path: str, content: bytes, head: bytes = JSON, method: bytes = b"POST") -> None:
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.host, int(self.port))
        length = f"Content-Length: {len(content)}\r\n".encode() if content or method == b"POST" else b""
        self.streams[1].write(
            method + b" " + path.encode() + b" HTTP/1.1\r\nHost: here\r\n" + head + length + b"\r\n" + content
        )
        await self.streams[1].drain()

    async def answer(self) -> tuple[int, bytes]:
        assert self.streams is not None
        reader = self.streams[0]
        lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in lines[1:] if b": " in line)
        if headers.get(b"transfer-encoding") == b"chunked":
            parts = []
            while size := int((await reader.readline()).strip(), 16):
                parts.append(await reader.readexactly(size))
                await reader.readline()
            await reader.readline()
            body = b"".join(parts)
        else:
            body = await reader.readexactly(int(headers[b"content-length"]))
        if headers.get(b"connection") == b"close":
            self.leave()
        return int(lines[0].split()[1]), body

    async def first_bytes(self) -> None:
        assert self.streams is not None
        await self.streams[0].read(200)

    def leave(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def said(path: str, body: bytes) -> Any:
    """What of an answer has to be the same again."""
    if body.startswith(b"event: "):
        name, data = body.decode().strip().split("\n\n")[-1].split("\n")
        assert name == "event: done", name
        body = data.removeprefix("data: ").encode()
    found = json.loads(body)
    if path == PATHS["generate"]:
        return [(token["id"], token["depth"], token["score"]) for token in found["tokens"]]
    if path == PATHS["classify"]:
        return [
            (found["label"], 0, found["value"]),
            *((name, 0, score) for name, score in (found["scores"] or {}).items()),
        ]
    if path == PATHS["tag"]:
        return [(word["tag"], word["depth"], None) for word in found["words"]]
    return [(found["answer"], 0, found["score"])]


def judged(ours: Any, alone: Any, margin: float) -> str:
    """Whether two answers are the same: ``equal``, ``tie`` where they part at equal scores, or ``different``."""
    for (value, depth, score), (other, other_depth, other_score) in zip(ours, alone, strict=False):
        near = score is None or other_score is None or abs(score - other_score) <= margin
        if value != other or depth != other_depth:
            return "tie" if near and score is not None else "different"
        if not near:
            return "different"
    return "equal" if len(ours) == len(alone) else "different"


async def alone(address: str, good: Sequence[Good]) -> dict[bytes, Any]:
    """The answer of every good request by itself."""
    client, found = Client(address), {}
    for each in good:
        await client.send(each.path, each.content)
        status, body = await client.answer()
        if status != 200:
            raise SystemExit(f"{each.body} should be answered, but: {status} {body.decode()}")
        found[each.content] = said(each.path, body)
    client.leave()
    return found


async def clients(
    server: Server, good: Sequence[Good], bad: Sequence[Bad], expected: dict[bytes, Any], options: argparse.Namespace
) -> Tally:
    tally, left = Tally(), iter(range(options.requests))

    async def one(number: int) -> None:
        chance, client = random.Random(options.seed + 1 + number), Client(server.address)
        for place in left:
            if place % max(1, options.requests // 50) == 0:
                tally.memory.append(memory_of(server))
            if chance.random() < SHARE_OF_BAD:
                await be_bad(client, chance.choice(bad), tally)
            else:
                await be_good(client, chance.choice(good), expected, options.margin, tally)
        client.leave()

    await asyncio.gather(*(one(number) for number in range(options.clients)))
    tally.memory.append(memory_of(server))
    return tally


async def be_good(client: Client, each: Good, expected: dict[bytes, Any], margin: float, tally: Tally) -> None:
    began = time.perf_counter()
    try:
        await client.send(each.path, each.content)
        status, body = await client.answer()
    except (OSError, asyncio.IncompleteReadError) as error:
        client.leave()
        tally.wrong(f"no answer to {each.body}: {error!r}")
        return
    tally.seconds.append(time.perf_counter() - began)
    tally.statuses[f"good {status}"] += 1
    if status != 200:
        tally.wrong(f"{status} for {each.body}: {body.decode()}")
        return
    verdict = judged(said(each.path, body), expected[each.content], margin)
    tally.outcomes[verdict] += 1
    if verdict == "different":
        tally.wrong(f"another answer to {each.body}")


async def be_bad(client: Client, each: Bad, tally: Tally) -> None:
    try:
        await client.send(each.path, each.content, each.head, each.method)
        if each.leaves:
            if each.name != "leaves at once":
                await client.first_bytes()
            client.leave()
            tally.outcomes["left"] += 1
            return
        status, body = await client.answer()
    except (OSError, asyncio.IncompleteReadError) as error:
        client.leave()
        tally.wrong(f"no answer to {each.name} at {each.path}: {error!r}")
        return
    tally.statuses[f"bad {status}"] += 1
    if not 400 <= status < 500 or not json.loads(body)["error"]["message"]:
        tally.wrong(f"{status} for {each.name} at {each.path}: {body.decode()}")
    else:
        tally.outcomes["refused"] += 1


def memory_of(server: Server) -> int:
    """Bytes of the server that are in memory now."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def inputs_of(run: Path, most: int, seed: int) -> list[tuple[str, ...]]:
    """Inputs of the run's test data, else of its validation data."""
    task = open_run(run)
    for split in ("test", "valid"):
        try:
            report = LineReport(LineRules("skip", task.recipe.data.max_chars))
            found = [task.inputs_of(example) for example in islice(task.corpus(split).examples(report), 20 * most)]
        except (DepthwiseError, OSError):
            continue
        return random.Random(seed).sample(found, min(most, len(found)))
    raise SystemExit(f"the test data of {run} is not here")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--inputs", type=int, default=200, help="different good requests for each run")
    parser.add_argument("--margin", type=float, default=1e-3, help="log-probabilities that may be a tie")
    parser.add_argument("--threads", type=int, default=1, help="of the server")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options, console = parser.parse_args(), Console(width=140, highlight=False)
    port, chance = free_port(), random.Random(options.seed)
    command = ["-m", "depthwise", "serve", *map(str, options.runs), "--port", str(port), "--quiet"]
    with running(command, port, options.threads) as server:
        good: list[Good] = []
        for run, model in zip(options.runs, server.get("/v1/models")["models"], strict=True):
            good += good_requests(model, inputs_of(run, options.inputs, options.seed), chance)
        expected = asyncio.run(alone(server.address, good))
        began = time.monotonic()
        tally = asyncio.run(clients(server, good, bad_requests(good), expected, options))
        seconds = time.monotonic() - began
        is_healthy = server.get("/health") == {"status": "ok"} and server.get("/ready") == {"status": "ready"}
        again = asyncio.run(alone(server.address, good[:20]))
        is_same = all(
            judged(again[each.content], expected[each.content], options.margin) == "equal" for each in good[:20]
        )
    warm, last = tally.memory[max(1, len(tally.memory) // 10)], max(tally.memory[-3:])
    growth, latencies = last / warm - 1, sorted(tally.seconds)
    found = {
        "requests": options.requests,
        "clients": options.clients,
        "seconds": seconds,
        "good": {f"p{share}": latencies[int(share / 100 * (len(latencies) - 1))] for share in (50, 95, 99)},
        "statuses": dict(sorted(tally.statuses.items())),
        "outcomes": dict(tally.outcomes),
        "memory_mib": [round(each / 2**20, 1) for each in tally.memory],
        "growth": growth,
        "healthy": is_healthy and is_same,
        "exit_code": server.process.returncode,
    }
    console.print_json(json.dumps(found))
    for mistake in tally.mistakes:
        console.print(mistake, markup=False)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    has_failed = tally.outcomes["wrong"] or growth > MOST_GROWTH or not found["healthy"] or found["exit_code"] != 0
    raise SystemExit(int(bool(has_failed)))


if __name__ == "__main__":
    main()
