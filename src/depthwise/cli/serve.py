"""``depthwise serve``: runs that answer over HTTP."""

import logging
import os
from typing import Annotated

import typer

from depthwise.cli.run_arguments import Device, DeviceOption, Precision, PrecisionOption, quieten
from depthwise.errors import BackendUnavailable

KEY_VARIABLE = "DEPTHWISE_API_KEY"
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
NUM_CACHED = "64"
"""On a CPU, torch keeps the code that it makes for every shape of a batch, 1,024 of them in each of two caches. Shapes
of requests hardly ever come again: memory would grow by hundreds of megabytes, and nothing would be faster for it."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    runs: Annotated[
        list[str], typer.Argument(help="Folders of runs; NAME=FOLDER gives one another name.", metavar="RUN...")
    ],
    host: Annotated[str, typer.Option(help="Where to listen; only this machine unless told otherwise.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any that is free.", min=0, max=65535)] = 8000,
    depth: Annotated[
        str | None,
        typer.Option(help="For requests that ask for none: full, a number or a setting.", metavar="full|N|NAME"),
    ] = None,
    max_rows: Annotated[int, typer.Option(help="Requests of a model that run together.", min=1)] = 32,
    max_wait: Annotated[float, typer.Option(help="Milliseconds to wait for others to run with.", min=0)] = 5.0,
    max_body: Annotated[int, typer.Option(help="Bytes of a request.", min=1)] = 256 * 1024,
    max_input: Annotated[int, typer.Option(help="Tokens of an input.", min=1)] = 4096,
    max_new: Annotated[int, typer.Option(help="Tokens of a text that is generated.", min=1)] = 1024,
    max_waiting: Annotated[int, typer.Option(help="Requests of a model that may wait.", min=1)] = 256,
    max_seconds: Annotated[float, typer.Option(help="For one request.")] = 60.0,
    examples: Annotated[
        int, typer.Option(help="Inputs of its validation data that a run shows to whoever asks.", min=0)
    ] = 0,
    log_text: Annotated[
        bool, typer.Option("--log-text", help="Log what users write and what they are answered.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Log nothing but warnings.")] = False,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = Precision.fp32,
) -> None:
    """Serve runs over HTTP: text, classes, tags and answers, each request at the depth that it asks for.

    A page to try them is at /, the description of all addresses at /openapi.json. Where DEPTHWISE_API_KEY is set,
    requests have to carry it. Told to stop, the server first finishes what it has accepted.
    """
    for name in CACHES:
        os.environ.setdefault(name, NUM_CACHED)
    try:
        from depthwise.serving.options import Limits, ServingOptions
        from depthwise.serving.server import serve as run_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("fastapi", "uvicorn", "starlette", "prometheus_client"):
            raise
        raise BackendUnavailable(
            f"serving needs {error.name}, which is not installed; run pip install 'depthwise[serve]'"
        ) from None
    from depthwise.serving.hub import named_runs
    from depthwise.tasks.run_folder import run_config

    key = os.environ.get(KEY_VARIABLE)
    limits = Limits(
        body_bytes=max_body, input_tokens=max_input, new_tokens=max_new, waiting=max_waiting, seconds=max_seconds
    )
    options = ServingOptions(
        limits=limits,
        max_rows=max_rows,
        max_wait=max_wait / 1000,
        api_key=key,
        logs_text=log_text,
        depth=int(depth) if depth is not None and depth.isdecimal() else depth,
        num_examples=examples,
        device=device.value,
        precision=precision.value,
    )
    named = named_runs(runs)
    for folder in named.values():
        run_config(folder)  # says now what is wrong with it
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("depthwise").setLevel(logging.WARNING if quiet else logging.INFO)
    quieten()
    if host not in LOOPBACK and key is None:
        typer.echo(f"note: whoever reaches {host} can ask; set {KEY_VARIABLE} to keep others out", err=True)
    run_server(
        named,
        options,
        host=host,
        port=port,
        on_ready=lambda address: typer.echo(f"serving {', '.join(named)} at {address}"),
    )
