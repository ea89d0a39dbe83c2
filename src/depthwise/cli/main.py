"""The ``depthwise`` command: commands are listed here and live in files of their own."""

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from depthwise.cli.calibrate import calibrate
from depthwise.cli.convert import convert
from depthwise.cli.demo import demo
from depthwise.cli.depths import depths
from depthwise.cli.evaluate import evaluate
from depthwise.cli.info import info
from depthwise.cli.layers import layers
from depthwise.cli.predict import predict
from depthwise.cli.prune import prune
from depthwise.cli.recipes import recipes
from depthwise.cli.reconstruct import reconstruct
from depthwise.cli.report import report
from depthwise.cli.serve import serve
from depthwise.cli.sweep import sweep
from depthwise.cli.train import leads, train
from depthwise.cli.tune import tune
from depthwise.errors import DepthwiseError

app = typer.Typer(
    name="depthwise",
    help="Sequence models that spend only the depth each input needs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(tune)
app.command()(evaluate)
app.command()(sweep)
app.command()(calibrate)
app.command()(predict)
app.command()(depths)
app.command()(reconstruct)
app.command()(report)
app.command()(serve)
app.command()(prune)
app.command()(layers)
app.command()(info)
app.command()(recipes)
app.command()(train)
app.add_typer(convert, name="convert")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"depthwise {version('depthwise')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Sequence models that spend only the depth each input needs."""


def main() -> None:
    """Run a command; a user's mistake is one clear message and exit code 1, never a traceback."""
    try:
        app()
    except DepthwiseError as error:
        process = "" if leads() else f"process {os.environ['RANK']}: "
        typer.echo(f"{process}{typer.style('error', fg='red', bold=True)}: {error}", err=True)
        sys.exit(1)
