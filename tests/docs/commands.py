"""What becomes of a command of a page.

``depthwise`` is run for real on tiny runs and texts; its trainings are read as they stand, their model is built at full
size on the meta device, and they are trained in miniature if the page then uses the run. Benchmarks and the demo, which
take minutes, are read by their own command lines. Whatever else a page asks for (``make``, ``pip``) has to exist.
"""

import argparse
import contextlib
import io
import json
import re
import runpy
import sys
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
import typer
from packaging.requirements import Requirement
from torch.distributed.run import get_args_parser

from depthwise.cli.main import app, main
from depthwise.config import PRETRAINED, Recipe, model_options, with_vocabulary
from depthwise.models.configuration import DepthwiseConfig
from depthwise.tasks import TASKS

from .blocks import REPOSITORY
from .shell import Call
from .world import World, write_encoder, write_fairseq

ONLY_READ = ("demo", "serve")
"""Commands that take a minute or more, or never end, and whose own tests run them."""


class Failed(AssertionError):
    """A command that does not do what its page says."""


def carry_out(call: Call, world: World, *, only_read: bool = False) -> str:
    """Run or read a command in the world's folder, which is the current one; what it printed."""
    match call.program, *call.arguments:
        case "depthwise", *arguments:
            return depthwise(arguments, call.stdin, world, only_read=only_read)
        case "python", "-m", "depthwise", *arguments:
            return depthwise(arguments, call.stdin, world)
        case "python", script, *arguments if script.startswith(("benchmarks/", "examples/")):
            read_by_script(script, arguments)
        case "torchrun", *arguments:
            given = get_args_parser().parse_args(arguments)
            if not (given.module and given.training_script == "depthwise"):
                raise Failed(f"{call}: torchrun is to start -m depthwise")
            return depthwise(given.training_script_args, b"", world)
        case "make", *targets:
            for target in targets:
                check_target(target)
        case "pip", "install", *wanted:
            check_installed(wanted)
        case "curl", *arguments:
            check_request(arguments)
        case _:
            raise Failed(f"{call}: nobody knows how to check that")
    return ""


def depthwise(arguments: Sequence[str], stdin: bytes, world: World, *, only_read: bool = False) -> str:
    context = read(arguments)
    command = context.command.name
    if command == "train":
        given = context.params
        recipe = world.recipe(given["recipe"], given["changes"] or [])
        build(recipe)
        world.train(recipe, given["out"], " ".join(("depthwise", *arguments)))
        return ""
    if only_read or command in ONLY_READ:
        return ""
    if command in ("hf", "fairseq"):
        (write_encoder if command == "hf" else write_fairseq)(context.params["source"])
    else:
        for name in named_runs(arguments, world):
            world.run(name)
    return run_main(arguments, stdin)


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


def named_runs(arguments: Sequence[str], world: World) -> list[str]:
    """The arguments that name runs to be read."""
    command, *rest = arguments
    read_from, written = [], {"--out", "-o", "--plot", "--predictions"}
    for before, argument in zip([command, *rest], rest, strict=False):
        is_run = argument.startswith("runs/") or argument in {*world.runs, *world.promised}
        if is_run and before not in written:
            read_from.append(argument)
    return read_from[:1] if command == "prune" else read_from


def build(recipe: Recipe) -> None:
    """The model of a recipe at its full size, without weights; sizes that data decide are left to the training."""
    if PRETRAINED not in recipe.model and "size" not in recipe.model:
        options = with_vocabulary(model_options(recipe.model), 1000, 1000)
        with torch.device("meta"):
            TASKS[recipe.task].model_class(DepthwiseConfig.from_options(options))


def run_main(arguments: Sequence[str], stdin: bytes) -> str:
    """``depthwise`` in this process."""
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


class _Read(Exception):
    """The arguments of a script were fine."""


def parser_of(script: str, arguments: Sequence[str], *, reads: bool = True) -> argparse.ArgumentParser:
    """The command line of a script, which has read these arguments if it ``reads`` any."""
    path = REPOSITORY / script
    if not path.is_file():
        raise Failed(f"{script} does not exist")
    found: list[argparse.ArgumentParser] = []
    plain = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        found.append(self)
        if reads:
            plain(self, args, namespace)
        raise _Read

    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(errors):
        patch.setattr(sys, "argv", [script, *arguments])
        patch.syspath_prepend(str(path.parent))
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        try:
            runpy.run_path(str(path), run_name="__main__")
        except _Read:
            return found[0]
        except SystemExit:
            raise Failed(f"{script} {' '.join(arguments)}: {errors.getvalue()}") from None
    raise Failed(f"{script} never read its arguments")


def read_by_script(script: str, arguments: Sequence[str]) -> None:
    parser_of(script, arguments)


def check_request(arguments: Sequence[str]) -> None:
    """A request goes to a server on this machine, and what it sends is JSON."""
    addresses = [argument for argument in arguments if re.match(r"(?:https?://)?[\w.]+:\d+(?:/|$)", argument)]
    if not addresses or not all(re.match(r"(?:http://)?(?:localhost|127\.0\.0\.1):", each) for each in addresses):
        raise Failed(f"curl {' '.join(arguments)}: ask a server at localhost:PORT")
    for before, argument in pairwise(arguments):
        if before in ("-d", "--data", "--json"):
            json.loads(argument)


def check_target(target: str) -> None:
    if not re.search(rf"^{re.escape(target)}:", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE):
        raise Failed(f"make {target}: the Makefile has no such target")


def check_installed(wanted: Sequence[str]) -> None:
    """The package itself, from here or by name, with extras that it has."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    words = iter(wanted)
    for word in words:
        if word in ("-c", "-r"):
            if not (REPOSITORY / next(words)).is_file():
                raise Failed(f"pip install {' '.join(wanted)}: there is no such file")
        elif word not in (".", "-e", "--editable"):
            asked = Requirement(word.replace(".[", "depthwise["))
            if asked.name != project["name"] or not asked.extras <= set(project["optional-dependencies"]):
                raise Failed(f"pip install {word}: this package has no such extra")
