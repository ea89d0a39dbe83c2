"""Running the blocks of a page, one behind the other, in a folder of their own."""

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from depthwise.errors import DepthwiseError

from .blocks import BadBlock, Block, Span
from .calling import Failed
from .commands import carry_out
from .patched import NEW_FILE, PatchedPackage
from .servers import same_keys
from .shell import Call, Loops, calls_of
from .spans import call_of
from .world import World

NAMED = re.compile(r"# ([\w-]+\.yaml)\n")
"""The first line of a recipe that commands of the page then use."""


class Runner:
    """Blocks of Python share their names, blocks of shell their folder, and all of them the runs."""

    def __init__(self, world: World, scratch: Path) -> None:
        self.world, self.scratch = world, scratch
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.printed = self.answered = ""
        self.called: set[Call] = set()
        self.count = 0
        self.patched: PatchedPackage | None = None
        self.swept: Counter[frozenset[str]] = Counter()

    def run(self, shown: Block | Span) -> None:
        """A block, or a command within a sentence."""
        with self._blamed(shown):
            if isinstance(shown, Block):
                getattr(self, shown.language)(shown)
            elif (call := call_of(shown)) is not None and call not in self.called:
                self._carry_out(call, Loops())

    def finish(self) -> None:
        """What is left to do when the page has been read to its end."""
        with self._blamed(Span(self.world.page, 0, "")):
            self.world.finish()

    @contextlib.contextmanager
    def _blamed(self, shown: Block | Span) -> Iterator[None]:
        """Errors say where on the page they come from."""
        try:
            yield
        except BadBlock:
            raise
        except (DepthwiseError, Failed, AssertionError) as error:
            raise BadBlock(f"{shown.where}: {error}") from error
        except Exception as error:
            raise BadBlock(f"{shown.where}: {type(error).__name__}: {error}") from error

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
        loops = Loops()
        for call in calls:
            self._carry_out(call, loops)

    def _carry_out(self, call: Call, loops: Loops) -> None:
        self.called.add(call)
        try:
            said = carry_out(call, self.world, only_read=loops.is_over(call) or self._was_swept(call))
        except Exception as error:
            raise Failed(f"{call}\n{type(error).__name__}: {error}") from error
        self.answered = said if call.program == "curl" else ""

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
        """Behind a request, what was answered: it has the same keys."""
        shown = json.loads(block.text)
        if self.answered and not same_keys(shown, json.loads(self.answered)):
            raise BadBlock(f"{block.where}: this was answered instead:\n{self.answered}")
        self.answered = ""

    def text(self, block: Block) -> None:
        """Output, where it stands behind Python; else it is only shown."""
        if block.shows_output and block.text != self.printed:
            raise BadBlock(f"{block.where}: this was printed instead:\n{self.printed}")
