"""Blocks of shell, read by a real shell that only writes down which programs were called and with what."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .blocks import PROGRAMS, BadBlock, Block

PRELUDE = """\
set -euo pipefail
record() {
  local given=
  if [ -p /dev/stdin ] || [ -f /dev/stdin ]; then
    given=$(mktemp "$RECORDS/stdin.XXXXXX")
    cat > "$given"
  fi
  printf '%s\\0' "$#" "$given" "$@" >> "$RECORDS/calls"
}
"""
"""Before a block: every known program is a function that records its call. No other program can be found."""
NUMBER = re.compile(r"\d+(?:\.\d+)?")
ALIKE = 2
"""How often a command of a loop is carried out; if it comes again with other numbers, it is read alone."""
PLAIN = ("cat", "mktemp", "mkdir", "head")
"""Programs that do what they always do."""


@dataclass(frozen=True)
class Call:
    """A program with its arguments, as the shell understood them, and what was piped into it."""

    program: str
    arguments: tuple[str, ...]
    stdin: bytes

    def __str__(self) -> str:
        return " ".join((self.program, *self.arguments))


class Loops:
    """Counts calls that differ in nothing but numbers; ``most`` of them are carried out."""

    def __init__(self, most: int = ALIKE) -> None:
        self.most = most
        self.seen: Counter[str] = Counter()

    def is_over(self, call: Call) -> bool:
        """Whether this call comes after enough others that are like it."""
        shape = NUMBER.sub("0", str(call))
        self.seen[shape] += 1
        return self.seen[shape] > self.most


def calls_of(block: Block, folder: Path, records: Path) -> list[Call]:
    """The calls that a block makes, run by bash in ``folder``; ``records`` is an empty folder."""
    programs = records / "bin"
    programs.mkdir()
    for name in PLAIN:
        where = next(path for path in (Path("/usr/bin", name), Path("/bin", name)) if path.exists())
        (programs / name).symlink_to(where)
    functions = "".join(f'{program}() {{ record {program} "$@"; }}\n' for program in PROGRAMS)
    done = subprocess.run(
        ["/bin/bash", "--noprofile", "--norc", "-c", PRELUDE + functions + block.text],
        cwd=folder,
        env={"PATH": str(programs), "RECORDS": str(records), "LC_ALL": "C.UTF-8", "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BadBlock(f"{block.where}: the shell failed: {done.stderr.strip() or done.returncode}")
    return list(_read(records / "calls"))


def _read(path: Path) -> Iterator[Call]:
    if not path.exists():
        return
    words = iter(path.read_text(encoding="utf-8").split("\0")[:-1])
    for number in words:
        given = next(words)
        program, *arguments = (next(words) for _ in range(int(number)))
        yield Call(program, tuple(arguments), Path(given).read_bytes() if given else b"")
