"""``depthwise`` in this process: its arguments as it reads them, and whole commands."""

import contextlib
import io
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import typer

from depthwise.cli.main import app, main


class Failed(AssertionError):
    """A command that does not do what its page says."""


def read(arguments: Sequence[str]) -> typer.Context:
    """The arguments as the command line reads them, down to the command that they name."""
    command: Any = typer.main.get_command(app)
    context, rest = typer.Context(command, info_name="depthwise"), list(arguments)
    try:
        while hasattr(command, "resolve_command"):
            name, command, rest = command.resolve_command(context, rest)
            is_group = hasattr(command, "resolve_command")
            context = (
                typer.Context(command, info_name=name, parent=context)
                if is_group
                else command.make_context(name, rest, parent=context)
            )
    except Exception as error:  # Typer's are no part of its public surface
        raise Failed(f"depthwise {' '.join(arguments)}: {error}") from None
    return context


def run_main(arguments: Sequence[str], stdin: bytes = b"") -> str:
    """Run a command; what it printed."""
    out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        patch.setattr(sys, "argv", ["depthwise", *arguments])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        with pytest.raises(SystemExit) as raised:
            main()
    said = [stream.buffer.getvalue().decode() for stream in (out, errors) if not stream.flush()]  # type: ignore[attr-defined]
    if raised.value.code:
        raise Failed(f"depthwise {' '.join(arguments)}: ended with {raised.value.code}: {said[1] or said[0]}")
    return said[0]
