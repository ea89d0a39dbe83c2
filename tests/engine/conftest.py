"""The tiny models of ``tests/models``, which the compact executor runs although that saves them no time."""

from collections.abc import Iterator

import pytest

from depthwise.engine import choosing

from ..models.conftest import build, config_of, draw_batch, draw_ids, mixer, norm

__all__ = ["build", "config_of", "draw_batch", "draw_ids", "mixer", "norm"]


@pytest.fixture(scope="session", autouse=True)
def _compact_wherever_something_is_saved() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "WORTH", dict.fromkeys(choosing.WORTH, 0.0))
        yield
