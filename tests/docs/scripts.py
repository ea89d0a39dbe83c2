"""Scripts of ``benchmarks/`` and ``examples/``, run as pages call them, in this process and in miniature.

A script reads its own arguments; sizes among them, and constants of its modules, are then replaced by small ones. Where
torch sees no GPU, ``--device cuda`` becomes ``cpu``; scripts that time what there is on a GPU alone (Triton kernels,
recorded passes) have to refuse there, in a clear sentence.
"""

import argparse
import ast
import contextlib
import importlib
import io
import json
import re
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from .blocks import REPOSITORY
from .calling import Failed
from .small_benchmarks import BENCHMARKS, EXAMPLES, Small

FOLDERS = {"benchmarks": BENCHMARKS, "examples": EXAMPLES}
WRITTEN = ("--json", "--plot", "--out", "--into")
"""Options that name what a script writes."""
REFUSED = re.compile(r"torch sees (no GPU|none) here")


def is_script(name: str) -> bool:
    return name.startswith(tuple(f"{folder}/" for folder in FOLDERS))


def path_of(script: str) -> Path:
    path = REPOSITORY / script
    if not path.is_file():
        raise Failed(f"{script} does not exist")
    return path


def small_of(script: str) -> Small:
    path = path_of(script)
    known = FOLDERS[path.parent.name]
    if path.stem not in known:
        raise Failed(f"{script}: say in tests/docs/small_benchmarks.py how it is made small")
    return known[path.stem]


def run_script(
    script: str,
    arguments: Sequence[str],
    options: Mapping[str, Any] = MappingProxyType({}),
    constants: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Run a script in the current folder; what it printed.

    ``options`` and ``constants`` join those that make it small.
    """
    path, small, said = path_of(script), small_of(script), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        patch.setattr(sys, "argv", [script, *arguments])
        with imported(path, patch) as module:
            for name, value in {**small.constants, **constants}.items():
                patch.setattr(name, value)
            replace_options(patch, {**small.options, **options})
            code = exit_code(module, path)
    command, text = f"{script} {' '.join(arguments)}", said.getvalue()
    if small.needs_gpu and not torch.cuda.is_available():
        if not (code and REFUSED.search(text + str(code))):
            raise Failed(f"{command}: ended with {code} without a GPU: {text}")
        return text
    if code:
        raise Failed(f"{command}: ended with {code}: {text}")
    shows = "^usage: " if "--help" in arguments else small.shows
    if not re.search(shows, text, re.MULTILINE):
        raise Failed(f'{command}: "{shows}" is nowhere in what it printed: {text}')
    check_files(command, arguments)
    return text


@contextlib.contextmanager
def imported(path: Path, patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A script as a module. It and those beside it are gone afterwards: their names are common ones."""
    names = [other.stem for other in path.parent.glob("*.py")]
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    patch.syspath_prepend(str(path.parent))
    try:
        yield importlib.import_module(path.stem)
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def replace_options(patch: pytest.MonkeyPatch, sizes: Mapping[str, Any]) -> None:
    """From now on, what a command line has read is changed behind it."""
    plain = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        read = plain(self, args, namespace)
        for name in sizes.keys() & vars(read).keys():
            setattr(read, name, sizes[name](getattr(read, name)) if callable(sizes[name]) else sizes[name])
        if str(getattr(read, "device", "")).startswith("cuda") and not torch.cuda.is_available():
            read.device = "cpu"
        return read

    patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)


def exit_code(module: Any, path: Path) -> int | str:
    """What a script ends with: its last lines are run as if it had been started."""
    end = ast.parse(path.read_text(encoding="utf-8")).body[-1]
    try:
        exec(compile(ast.Module([end], []), str(path), "exec"), {**vars(module), "__name__": "__main__"})
    except SystemExit as ended:
        return ended.code or 0
    except Exception as error:
        raise Failed(f"{path.name}: {type(error).__name__}: {error}") from error
    return 0


def check_files(command: str, arguments: Sequence[str]) -> None:
    """What was to be written is there; JSON can be read."""
    for option, name in pairwise(arguments):
        if option not in WRITTEN:
            continue
        if not Path(name).exists():
            raise Failed(f"{command}: {name} was not written")
        if option == "--json":
            json.loads(Path(name).read_text(encoding="utf-8"))


class _Read(Exception):
    """The arguments of a script were fine."""


def parser_of(script: str, arguments: Sequence[str], *, reads: bool = True) -> argparse.ArgumentParser:
    """The command line of a script, which has read these arguments if it ``reads`` any."""
    path = path_of(script)
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
