"""What becomes of a command of a page.

``depthwise`` is run for real on tiny runs and texts, the server in a process of its own; trainings are read as they
stand, their model is built at full size on the meta device, and they are trained in miniature. Scripts are run in
miniature too. ``make`` says what it would do, and where that is ``depthwise``, it is done. Whatever else a page asks
for (``pip``) has to exist.
"""

import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from packaging.requirements import Requirement
from torch.distributed.run import get_args_parser

from depthwise.config import PRETRAINED, Recipe, model_options, with_vocabulary
from depthwise.models.configuration import DepthwiseConfig
from depthwise.tasks import TASKS

from .blocks import REPOSITORY
from .calling import Failed, read, run_main
from .scripts import WRITTEN, is_script, run_script, small_of
from .servers import answer
from .shell import Call, Loops
from .world import World, write_encoder, write_fairseq

MAKE_VARIABLES = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
"""What ``make test`` leaves to programs that it starts."""


def carry_out(call: Call, world: World, *, only_read: bool = False) -> str:
    """Run or read a command in the world's folder, which is the current one; what it printed."""
    match call.program, *call.arguments:
        case "depthwise", *arguments:
            return depthwise(arguments, call.stdin, world, only_read=only_read)
        case "python", "-m", "depthwise", *arguments:
            return depthwise(arguments, call.stdin, world)
        case "python", script, *arguments if is_script(script):
            return by_script(script, arguments, world)
        case "torchrun", *arguments:
            given = get_args_parser().parse_args(arguments)
            if not (given.module and given.training_script == "depthwise"):
                raise Failed(f"{call}: torchrun is to start -m depthwise")
            return depthwise(given.training_script_args, b"", world)
        case "make", *targets:
            for target in targets:
                make(target, world)
        case "pip", "install", *wanted:
            check_installed(wanted)
        case "curl", *arguments:
            return curl(arguments, world)
        case _:
            raise Failed(f"{call}: nobody knows how to check that")
    return ""


def depthwise(arguments: Sequence[str], stdin: bytes, world: World, *, only_read: bool = False) -> str:
    context = read(arguments)
    command, given = context.command.name, context.params
    if command == "train":
        recipe = world.recipe(given["recipe"], given["changes"] or [])
        build(recipe)
        world.train(recipe, given["out"], " ".join(("depthwise", *arguments)))
        return ""
    if only_read:
        return ""
    if command == "demo":
        return world.demo(given["out"])
    if command in ("hf", "fairseq"):
        (write_encoder if command == "hf" else write_fairseq)(given["source"])
    else:
        for name in named_runs(arguments, world):
            world.run(name)
    if command == "serve":
        world.servers.start(arguments[1:], given["port"])
        return ""
    return run_main(arguments, stdin)


def named_runs(arguments: Sequence[str], world: World) -> list[str]:
    """The arguments that name runs to be read."""
    command, *rest = arguments
    read_from, written = [], {*WRITTEN, "-o", "--predictions"}
    for before, argument in pairwise((command, *rest)):
        name = argument.partition("=")[2] if command == "serve" and "=" in argument else argument
        is_run = name.startswith("runs/") or name in {*world.runs, *world.promised}
        if is_run and before not in written:
            read_from.append(name)
    return read_from[:1] if command == "prune" else read_from


def build(recipe: Recipe) -> None:
    """The model of a recipe at its full size, without weights; sizes that data decide are left to the training."""
    if PRETRAINED not in recipe.model and "size" not in recipe.model:
        options = with_vocabulary(model_options(recipe.model), 1000, 1000)
        with torch.device("meta"):
            TASKS[recipe.task].model_class(DepthwiseConfig.from_options(options))


def by_script(script: str, arguments: Sequence[str], world: World) -> str:
    """Run a script with tiny runs; those that it trains itself are trained like those of a page."""
    for name in (*small_of(script).runs, *named_runs(("script", *arguments), world)):
        world.run(name)
    options, constants = dict[str, Any](), dict[str, Any]()
    if script == "examples/client.py":
        options["address"] = world.servers.address
    if script in ("benchmarks/faster.py", "benchmarks/reproduce.py"):
        constants["jobs._context"] = Started(world)
    if script == "benchmarks/faster.py":
        constants["faster.RECORD"] = world.folder / "faster.json"
    return run_script(script, arguments, options, constants)


class Started:
    """Stands in for ``multiprocessing`` in scripts that train many runs: what they start is carried out at once."""

    def __init__(self, world: World) -> None:
        self.world, self.loops = world, Loops(most=1)

    def __call__(self) -> SimpleNamespace:
        return SimpleNamespace(Process=self.process)

    def process(self, *, target: Any, args: tuple[Sequence[Sequence[str]], str, int]) -> SimpleNamespace:
        commands, _, _ = args
        nothing = {"is_alive": lambda: False, "join": lambda *_: None, "exitcode": 0}
        return SimpleNamespace(start=lambda: self.carry_out(commands), **nothing)

    def carry_out(self, commands: Sequence[Sequence[str]]) -> None:
        for command in commands:
            call = Call("depthwise", tuple(command), b"")
            if not self.loops.is_over(call):
                carry_out(call, self.world)
                if command[0] == "train":  # who goes on from it looks for it
                    self.world.run(command[-1])


def curl(arguments: Sequence[str], world: World) -> str:
    """Ask a server of the page, by Python; the body of its answer."""
    given, content, headers = iter(arguments), None, dict[str, str]()
    address = ""
    for word in given:
        if word in ("-d", "--data", "--json"):
            content = next(given).encode()
            json.loads(content)
        elif word in ("-H", "--header"):
            name, _, value = next(given).partition(":")
            headers[name] = value.strip()
        elif word.startswith("-"):
            if word not in ("-s", "--silent"):
                raise Failed(f"curl {' '.join(arguments)}: nobody knows how to check {word}")
        else:
            address = word
    return answer(world.servers.address(address), content, headers)


def make(target: str, world: World) -> None:
    """What ``make`` would do: it knows the target, and what it says of ``depthwise`` works."""
    environment = {name: value for name, value in os.environ.items() if name not in MAKE_VARIABLES}
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Failed(f"make {target}: {done.stderr.strip()}")
    for arguments in re.findall(r"^\S+/depthwise (.*)$", done.stdout, re.MULTILINE):
        depthwise(shlex.split(arguments), b"", world)


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
