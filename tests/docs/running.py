"""Running the blocks of a page, one behind the other, in a folder of their own."""

import contextlib
import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from depthwise.errors import DepthwiseError

from .blocks import BadBlock, Block
from .commands import Failed, carry_out
from .patched import NEW_FILE, PatchedPackage
from .shell import Call, calls_of
from .world import World

NUMBER = re.compile(r"\d+(?:\.\d+)?")
NAMED = re.compile(r"# ([\w-]+\.yaml)\n")
"""The first line of a recipe that commands of the page then use."""
ALIKE = 2
"""How often a command of a loop is carried out; if it comes again with other numbers, it is read alone."""


class Runner:
    """Blocks of Python share their names, blocks of shell their folder, and all of them the runs."""

    def __init__(self, world: World, scratch: Path) -> None:
        self.world, self.scratch = world, scratch
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.printed = ""
        self.count = 0
        self.patched: PatchedPackage | None = None
        self.swept: Counter[frozenset[str]] = Counter()

    def run(self, block: Block) -> None:
        try:
            getattr(self, block.language)(block)
        except BadBlock:
            raise
        except (DepthwiseError, Failed, AssertionError) as error:
            raise BadBlock(f"{block.where}: {error}") from error
        except Exception as error:
            raise BadBlock(f"{block.where}: {type(error).__name__}: {error}") from error

    def diff(self, block: Block) -> None:
        self.package.apply(block)

    @property
    def package(self) -> PatchedPackage:
        """The package with what this page adds to it; from then on it is what commands run."""
        if self.patched is None:
            self.patched = PatchedPackage(self.scratch / "package")
        return self.patched

    def _is_file(self, block: Block) -> bool:
        """Whether a block is a new file of the package, which its first line names; it is added then."""
        found = NEW_FILE.match(block.text)
        if found is None:
            return False
        self.package.add(found[1], block.text[found.end() :])
        return True

    def python(self, block: Block) -> None:
        if self._is_file(block):
            compile(block.text, block.where, "exec")
            return
        for name in {**self.world.runs, **self.world.promised}:
            if f'"{name}"' in block.text:
                self.world.run(name)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block.text, block.where, "exec"), self.names)
        self.printed = out.getvalue()

    def sh(self, block: Block) -> None:
        self.count += 1
        records = self.scratch / str(self.count)
        records.mkdir()
        calls = calls_of(block, self.world.folder, records)
        if self.patched is not None:
            self.patched.run(calls, self.world.folder)
            return
        seen: Counter[str] = Counter()
        for call in calls:
            shape = NUMBER.sub("0", str(call))
            seen[shape] += 1
            try:
                carry_out(call, self.world, only_read=seen[shape] > ALIKE or self._was_swept(call))
            except Exception as error:
                raise BadBlock(f"{block.where}: {call}\n{type(error).__name__}: {error}") from error

    def _was_swept(self, call: Call) -> bool:
        """Whether the page has swept a run with the same options before; sweeps take seconds."""
        if call.program != "depthwise" or call.arguments[:1] != ("sweep",):
            return False
        options = frozenset(word for word in call.arguments if word.startswith("--"))
        self.swept[options] += 1
        return self.swept[options] > 1

    def yaml(self, block: Block) -> None:
        """A recipe, if it says for which task, or what it is based on; or a new file of the package."""
        if self._is_file(block):
            return
        read = yaml.safe_load(block.text)
        if isinstance(read, dict) and {"task", "base"} & set(read):
            named = NAMED.match(block.text)
            path = self.scratch / "recipe.yaml" if named is None else self.world.folder / named[1]
            path.write_text(block.text, encoding="utf-8")
            self.world.recipe(str(path), [])

    def json(self, block: Block) -> None:
        json.loads(block.text)

    def text(self, block: Block) -> None:
        """Output, where it stands behind Python; else it is only shown."""
        if block.shows_output and block.text != self.printed:
            raise BadBlock(f"{block.where}: this was printed instead:\n{self.printed}")
