"""How far a kernel reaches to the left."""

import pytest

from depthwise.mixers.base import taps_before


@pytest.mark.parametrize(
    ("size", "causal", "before"),
    [(1, True, 0), (2, True, 1), (3, True, 2), (31, True, 30), (1, False, 0), (3, False, 1), (31, False, 15)],
)
def test_taps_before_the_current_position(size: int, causal: bool, before: int) -> None:
    assert taps_before(size, causal) == before
