"""``depthwise recipes``: the list, and one of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from depthwise.config import built_in, recipes

Depthwise = Callable[..., tuple[int, str, str]]


def test_the_list(depthwise: Depthwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("# A [tiny] model\n# time: 5 minutes\n# score: 28\ntask: translation\n")
    monkeypatch.setattr(recipes, "_built_in_files", lambda: [("start/one", path)])
    code, output, _ = depthwise("recipes")
    assert code == 0
    lines = [line.strip() for line in output.splitlines()]
    assert lines[1:4] == ["start/one  A [tiny] model", "time: 5 minutes", "score: 28"]


def test_every_recipe_is_listed_and_printed(depthwise: Depthwise) -> None:
    _, output, _ = depthwise("recipes")
    for recipe in built_in():
        assert recipe.name in output
        code, text, _ = depthwise("recipes", recipe.name)
        assert code == 0
        assert text.startswith(f"# {recipe.title}\n")
        assert "task:" in text or "base:" in text


def test_an_unknown_name(depthwise: Depthwise) -> None:
    code, output, errors = depthwise("recipes", "start/clasify")
    assert (code, output) == (1, "")
    assert "neither a file nor a built-in recipe" in errors
