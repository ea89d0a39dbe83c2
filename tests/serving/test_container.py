"""The Dockerfile, as far as it can be checked without a container engine."""

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from depthwise.cli.main import app

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_what_is_copied_is_there_and_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        name for arguments in re.findall(r"^COPY (?!--)(.*)$", TEXT, re.MULTILINE) for name in arguments.split()[:-1]
    ]
    assert set(copied) == allowed
    for name in copied:
        assert (ROOT / name).exists()


def test_the_command_is_one() -> None:
    (entry,), (command,) = (
        [json.loads(found) for found in re.findall(rf"^{kind} (.*)$", TEXT, re.MULTILINE)]
        for kind in ("ENTRYPOINT", "CMD")
    )
    assert entry == ["depthwise"]
    told = CliRunner().invoke(app, [command[0], "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert told.exit_code == 0
    for option in (each for each in command if each.startswith("--")):
        assert option in told.output


def test_it_runs_as_nobody_special() -> None:
    assert re.findall(r"^USER (.*)$", TEXT, re.MULTILINE) == ["depthwise"]
