"""The tiny models of ``tests/models``, which the compact executor runs although that saves them no time."""

from collections.abc import Iterator

import pytest

from depthwise.engine import choosing

from ..models.conftest import build, config_of, draw_batch, draw_ids, mixer, norm

__all__ = ["build", "config_of", "draw_batch", "draw_ids", "mixer", "norm"]


@pytest.fixture(scope="session", autouse=True)
def _always_compact() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "KINDS", dict.fromkeys(choosing.KINDS, choosing.Constants(-1.0)))
        yield
