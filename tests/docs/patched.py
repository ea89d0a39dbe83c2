"""Pages that change the package: their files and differences go into a copy of it, in which their commands are run."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .blocks import REPOSITORY, BadBlock, Block
from .shell import Call

NEW_FILE = re.compile(r"# (src/depthwise/[\w/]+\.(?:py|yaml))\n")
DRIVER = """\
import contextlib, io, json, sys, warnings
warnings.simplefilter("error")
from depthwise.cli.main import main
for arguments, stdin in json.load(sys.stdin):
    sys.argv, sys.stdin = ["depthwise", *arguments], io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        main()
    except SystemExit as end:
        if end.code:
            sys.exit(f"depthwise {' '.join(arguments)}: ended with {end.code}")
"""


@dataclass(frozen=True)
class Change:
    """Lines of a file and what comes in their place."""

    path: str
    before: tuple[str, ...]
    after: tuple[str, ...]


class PatchedPackage:
    """A copy of the package in ``folder`` that takes what a page adds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / "src", folder / "src", ignore=ignored)

    def add(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text, encoding="utf-8")

    def apply(self, block: Block) -> None:
        """Make the changes of a difference, wherever the lines stand that it shows."""
        for change in changes_of(block):
            path = self.folder / change.path
            if not path.is_file():
                raise BadBlock(f"{block.where}: there is no {change.path}")
            text, before = path.read_text(encoding="utf-8"), "".join(change.before)
            if not before or text.count(before) != 1:
                raise BadBlock(f"{block.where}: {change.path} has these lines {text.count(before)} times:\n{before}")
            path.write_text(text.replace(before, "".join(change.after)), encoding="utf-8")

    def run(self, calls: Sequence[Call], folder: Path) -> None:
        """Commands of ``depthwise``, one behind the other, with the copy in the place of the package."""
        if strangers := [call for call in calls if call.program != "depthwise"]:
            raise AssertionError(f"{strangers[0]}: only depthwise is run from a changed package")
        done = subprocess.run(
            [sys.executable, "-c", DRIVER],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(self.folder / "src")},
            input=json.dumps([(call.arguments, call.stdin.decode()) for call in calls]),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(done.stderr)


def changes_of(block: Block) -> Iterator[Change]:
    """The hunks of a unified difference."""
    path = ""
    lines: list[str] = []
    for line in [*block.text.splitlines(keepends=True), "@@\n"]:
        if line.startswith(("--- ", "+++ ", "@@")):
            if lines:
                before = tuple(line[1:] for line in lines if line[0] in " -")
                yield Change(path, before, tuple(line[1:] for line in lines if line[0] in " +"))
                lines = []
            if line.startswith("+++ "):
                path = line.split()[1].removeprefix("b/")
        elif line[0] in " +-" and path:
            lines.append(line)
        else:
            raise BadBlock(f"{block.where}: {line!r} is no line of a difference; begin with --- a/FILE, +++ b/FILE, @@")
