"""Servers of pages that do not start or end as they should, and answers that are not what a page shows."""

import sys
from pathlib import Path
from typing import Any

import pytest

from .calling import Failed
from .servers import Server, Servers, same_keys


def stand_in(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in the place of Python."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def test_a_server_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "echo 'there is no such run' >&2; exit 1", monkeypatch)
    with pytest.raises(Failed, match="depthwise serve RUN --quiet: there is no such run"):
        Server(["RUN", "--quiet"])


def test_a_server_that_ends_badly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = "trap 'kill $!; exit 3' TERM; echo 'serving RUN at http://127.0.0.1:1'; sleep 600 > /dev/null 2>&1 & wait"
    stand_in(tmp_path, end, monkeypatch)
    servers = Servers()
    servers.at[8000] = Server(["RUN"])
    assert servers.address("localhost:8000/ready") == "http://127.0.0.1:1/ready"
    with pytest.raises(Failed, match=r"depthwise serve RUN: ended with 3"):
        servers.stop()


@pytest.mark.parametrize(
    ("shown", "found", "is_same"),
    [
        ({"a": 1, "b": {"c": 2}}, {"a": 5, "b": {"c": 6}}, True),
        ({"a": 1}, {"a": 5, "b": 6}, False),
        ({"a": {"b": 1}}, {"a": {"c": 1}}, False),
        ({"a": {"b": 1}}, {"a": None}, False),
        ([{"a": 1}, "..."], [{"a": 2}], True),
        ([{"a": 1}], [{"b": 2}], False),
    ],
)
def test_keys_of_answers(shown: Any, found: Any, is_same: bool) -> None:
    assert same_keys(shown, found) is is_same
