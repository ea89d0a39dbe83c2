"""The command line in this process, and the tiny runs that evaluation is tested with."""

import re
import sys
from collections.abc import Callable

import pytest

from depthwise.cli.main import main

from ..evaluation.conftest import MakeRun, _no_bars, make_run, originals

__all__ = ["Depthwise", "MakeRun", "_no_bars", "depthwise", "make_run", "originals"]

Depthwise = Callable[..., tuple[int, str, str]]


@pytest.fixture
def depthwise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Depthwise:
    """The command in this process: exit code, output and errors, without colours."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["depthwise", *map(str, arguments)])
        with pytest.raises(SystemExit) as raised:
            main()
        captured = capsys.readouterr()
        code = raised.value.code
        return int(code or 0), *(re.sub(r"\x1b\[[0-9;]*m", "", text) for text in captured)

    return run
