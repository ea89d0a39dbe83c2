"""A store of tiny runs that pages share, and a runner for the blocks of a page."""

from collections.abc import Callable
from pathlib import Path

import pytest

from .running import Runner
from .world import World, quiet


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    quiet()
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def make_runner(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Runner]:
    """A runner for a page, in whose folder the test is from then on."""

    def make(page: str) -> Runner:
        folder, scratch = tmp_path / "world", tmp_path / "scratch"
        folder.mkdir()
        scratch.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("DEPTHWISE_CACHE", str(store / "cache"))
        return Runner(World(page, folder, store), scratch)

    return make
