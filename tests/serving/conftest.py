"""Tiny runs of every kind behind one server: in this process for most tests, in one of its own for signals."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
import uvicorn
from safetensors.torch import load_file, save_file

from depthwise.cli.prune import prune
from depthwise.engine import Engine
from depthwise.evaluation import load_run
from depthwise.evaluation.runs import Run
from depthwise.serving import hub as hub_module
from depthwise.serving.app import create_app
from depthwise.serving.hub import Hub
from depthwise.serving.options import Limits, ServingOptions
from depthwise.serving.server import DrainingServer

from ..evaluation.conftest import STACK, _no_bars, build_run, write_corpora
from ..tasks.test_question_answering import THREE

__all__ = ["_no_bars"]
SOON = 60.0
LONG = 600
"""New tokens of the model that never ends by itself."""
NO_SECRETS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nothing here is encrypted, and loading certificates takes longer than most requests."""
CLIENT = httpx2.Client(timeout=SOON, verify=NO_SECRETS, limits=httpx2.Limits(max_connections=200))
END = 2
"""The token that ends texts."""
LAYERS = {"xx": (0, 2), "yy": (1, 2, 4)}
"""Those that each language runs of the five of a run with gates; one of them is run by neither."""
OF_SOURCES = {"xx": (0,), "yy": (0, 1)}
"""The same of the two layers of an encoder with gates for each language that is translated."""
LANGUAGES = {"en-xx": [("a b c", "C B A"), ("b", "B")], "en-yy": [("a b", "a a b b"), ("c", "c c")]}


@dataclass(frozen=True)
class Live:
    """A server that listens, and what is behind it."""

    url: str
    hub: Hub
    server: DrainingServer

    def client(self) -> httpx2.Client:
        """One whose connections nobody else uses."""
        return httpx2.Client(base_url=self.url, timeout=SOON, verify=NO_SECRETS)

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return CLIENT.request(method, self.url + path, **options)

    def post(self, path: str, /, **body: Any) -> httpx2.Response:
        return self.ask("POST", path, json=body)

    def get(self, path: str) -> httpx2.Response:
        return self.ask("GET", path)

    def raw(self, content: bytes) -> bytes:
        """What comes back for these bytes, until the server closes or is silent."""
        with socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2])), timeout=5) as connection:
            connection.sendall(content)
            found = b""
            while part := connection.recv(65536):
                found += part
                if b"\r\n\r\n" in found:
                    head, _, body = found.partition(b"\r\n\r\n")
                    sizes = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
                    if sizes and len(body) >= int(sizes[0].split(b":")[1]):
                        break
        return found


def until(claim: Callable[[], bool]) -> None:
    """Waits for something that has to happen."""
    end = time.monotonic() + SOON
    while not claim():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def recipes_of(root: Path) -> dict[str, dict[str, Any]]:
    """Options of a recipe for every kind of run."""
    corpora = write_corpora(root)
    (root / "squad.json").write_text(json.dumps(THREE))
    for pair, sentences in LANGUAGES.items():
        for side, language in enumerate(pair.split("-")):
            lines = [texts[side] for texts in sentences]
            (root / f"t.{pair}.{language}").write_text("".join(f"{line}\n" for line in lines))
    long = {**corpora["leaving text"]["model"]}
    long["decoder"] = {**long["decoder"], "max_positions": 2 * LONG}
    many = {**corpora["leaving translation"], "task": "multilingual_translation"}
    many["data"] = {
        **{split: str(root / "t.{pair}") for split in ("train", "valid", "test")},
        **{"pairs": list(LANGUAGES), "cache": str(root / "cache")},
    }
    gated = {**STACK, "norm": "pre"}
    latent = {"width": 16, "encoder": gated, "decoder": gated, "latent": {"per_language": True, "sides": ["decoder"]}}
    deep = {**gated, "num_layers": 5}
    apart = {"width": 16, "encoder": gated, "decoder": deep, "latent": {**latent["latent"], "gates": "hard"}}
    sources = {**many, "model": {**latent, "latent": {**latent["latent"], "sides": ["encoder"], "gates": "hard"}}}
    sources["data"] = {**many["data"], "pairs": ["yy-en", "xx-en"]}
    sources["tokenizer"] = {**many["tokenizer"], "language_token": "none"}
    asking = {**corpora["leaving classes"], "task": "question_answering"}
    asking["data"] = {**dict.fromkeys(("train", "valid", "test"), str(root / "squad.json")), "max_tokens": 16}
    asking["data"] |= {"stride": 5, "max_question_tokens": 3}
    asking["tokenizer"] = {"kind": "word", "vocab_size": 40}
    words = {**corpora["classes"]}
    words["model"] = {**words["model"], "word_depths": {"estimator": "frequency"}}
    return {
        "translate": corpora["leaving translation"],
        "plain": corpora["translation"],
        "text": corpora["leaving text"],
        "long": {**corpora["leaving text"], "model": long},
        "many": many,
        "latent": {**many, "model": latent},
        "apart": {**many, "model": apart},
        "sources": sources,
        "classes": corpora["leaving classes"],
        "pairs": corpora["doubled"],
        "numbers": corpora["leaving numbers"],
        "structure": corpora["structured classes"],
        "words": words,
        "tags": corpora["leaving tags"],
        "answers": asking,
    }


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("served")
    found = {name: build_run(root / name, recipe, 1) for name, recipe in recipes_of(root).items()}
    set_gates(found["apart"], list(LAYERS.values()))
    set_gates(found["sources"], list(OF_SOURCES.values()), "encoder")
    found["pruned"] = pruned(found["apart"], root / "pruned")
    endless = found["long"] / "generation_config.json"
    endless.write_text(json.dumps({**json.loads(endless.read_text()), "suppress_tokens": [END]}))
    return found


def set_gates(folder: Path, layers: Sequence[Sequence[int]], side: str = "decoder") -> None:
    """The gates of a side, open at these layers of each language, so wide that no soft one is in between."""
    weights, name = load_file(folder / "model.safetensors"), f"model.{side}.latent.logits"
    logits = torch.full_like(weights[name], -8.0)
    for row, of_language in zip(logits, layers, strict=True):
        row[list(of_language)] = 8.0
    save_file({**weights, name: logits}, folder / "model.safetensors", metadata={"format": "pt"})


def pruned(run: Path, folder: Path, language: str | None = None) -> Path:
    """What ``depthwise prune`` leaves of a run, for all languages or for one."""
    prune(run, folder, language=language)
    return folder


def precise_run(folder: Path, **options: Any) -> Run:
    """A run that computes in float64, so that equal means equal."""
    run = load_run(folder, device="cpu")
    return replace(run, engine=Engine(run.model.double()))


@pytest.fixture(scope="session", autouse=True)
def _connections() -> Iterator[None]:
    yield
    CLIENT.close()


@pytest.fixture(scope="session")
def _precise() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_module, "load_run", precise_run)
        yield


Start = Callable[..., Live]


@pytest.fixture(scope="session")
def start(runs: dict[str, Path], _precise: None) -> Iterator[Start]:
    """Servers of this process; all are closed in the end."""
    opened: list[tuple[uvicorn.Server, threading.Thread]] = []

    def started(*names: str, loads: bool = True, limits: dict[str, Any] | None = None, **options: Any) -> Live:
        chosen = ServingOptions(limits=Limits(**(limits or {})), **{"device": "cpu", "max_wait": 0.002, **options})
        hub = Hub({name: runs[name] for name in names or runs}, chosen)
        if loads:
            hub.load()
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(create_app(hub), log_config=None, access_log=False, timeout_graceful_shutdown=5)
        server = DrainingServer(config, hub)
        thread = threading.Thread(target=lambda: server.run(sockets=[listening]), daemon=True)
        thread.start()
        opened.append((server, thread))
        until(lambda: server.started)
        return Live(f"http://127.0.0.1:{listening.getsockname()[1]}", hub, server)

    yield started
    for server, thread in opened:
        server.should_exit = True
        thread.join(SOON)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def live(start: Start) -> Live:
    """All runs, with limits that tests can reach."""
    return start(limits={"body_bytes": 20_000, "input_tokens": 600, "new_tokens": LONG, "seconds": 30.0})
