"""Running the application: models load while it already says that it is not ready; told to stop, it first finishes."""

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from types import FrameType

import uvicorn
from fastapi import FastAPI

from depthwise.errors import InputError
from depthwise.serving.app import create_app
from depthwise.serving.hub import Hub
from depthwise.serving.options import LOOPBACK, ServingOptions

SWITCH_SECONDS = 0.0005
"""For which a thread may keep others from Python. The usual 5 ms would be the wait at every socket that is written to
while a model computes."""
log = logging.getLogger("depthwise.serving")


class DrainingServer(uvicorn.Server):
    """On SIGTERM or SIGINT it goes on listening, so that new requests are told why they are refused (503), until those
    that it accepted are answered or their time is over. A second signal ends it at once."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self.hub = hub
        limits = hub.options.limits
        self._drain_seconds = limits.seconds if hub.options.drain_seconds is None else hub.options.drain_seconds
        self._drains_since: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.hub.is_draining:
            self.should_exit = self.force_exit = True
        self.hub.is_draining = True

    async def on_tick(self, counter: int) -> bool:
        if self.hub.is_draining and not self.should_exit:
            if self._drains_since is None:
                self._drains_since = monotonic()
                log.info("stopping: %d requests are being answered", self.hub.num_active)
            is_over = monotonic() - self._drains_since > self._drain_seconds
            self.should_exit = self.hub.num_active == 0 or is_over
        return await super().on_tick(counter)


def serve(
    runs: dict[str, Path],
    options: ServingOptions,
    *,
    host: str = LOOPBACK,
    port: int = 8000,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve runs until the process is told to stop. ``on_ready`` is told the address once all of them are loaded."""
    hub = Hub(runs, options)
    listening = _listening(host, port)
    address = f"http://{_in_address(host)}:{listening.getsockname()[1]}"
    failed: list[BaseException] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async def load() -> None:
            try:
                await asyncio.to_thread(hub.load)
                on_ready(address)
            except Exception as error:
                failed.append(error)
                server.should_exit = True

        loading = asyncio.ensure_future(load())
        yield
        await loading
        await asyncio.to_thread(hub.close)

    config = uvicorn.Config(
        create_app(hub, lifespan),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        ws="none",
    )
    server = DrainingServer(config, hub)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        server.run(sockets=[listening])
    finally:
        sys.setswitchinterval(usual)
    if failed:
        raise failed[0]


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise InputError(f"{host}:{port} cannot be listened at ({error}); give another --host or --port") from None
    listening.set_inheritable(True)
    return listening


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
