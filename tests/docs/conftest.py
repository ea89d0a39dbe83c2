"""A store of tiny runs that pages share, and a runner for the blocks of a page."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import jaxtyping
import pytest

from depthwise.evaluation import evaluating

from .running import Runner
from .world import World, quiet


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    quiet()
    gc.freeze()  # trainings collect garbage, a third of whose time would go into looking through libraries
    yield tmp_path_factory.mktemp("store")
    gc.unfreeze()


@pytest.fixture
def _unchecked_shapes() -> Iterator[None]:
    """Whole commands are run here, a third of whose time would go into what other tests check."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def make_runner(
    _unchecked_shapes: None, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Runner]]:
    """A runner for a page, in whose folder the test is from then on; servers that it leaves behind are ended."""
    worlds: list[World] = []

    def make(page: str) -> Runner:
        folder, scratch = tmp_path / "world", tmp_path / "scratch"
        folder.mkdir()
        scratch.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("DEPTHWISE_CACHE", str(store / "cache"))
        monkeypatch.setattr(evaluating, "warm_up", lambda *_: None)  # nobody looks at the times
        worlds.append(World(page, folder, store))
        return Runner(worlds[-1], scratch)

    yield make
    for world in worlds:
        world.servers.kill()
