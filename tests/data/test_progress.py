"""The bar that is drawn on a terminal."""

import io

import pytest
from rich.console import Console

from depthwise.data import progress


def test_names_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those with brackets, which Rich takes for its own marks otherwise."""
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(progress, "Console", lambda **_: terminal)
    assert list(progress.shown(iter("ab"), "tokenising reviews[train] of a[/b]", 2)) == ["a", "b"]
    assert "tokenising reviews[train] of a[/b]" in terminal.file.getvalue()  # type: ignore[attr-defined]
