"""The same depth for all."""

from collections.abc import Callable

import pytest

from depthwise.config import FixedDepthConfig
from depthwise.depth import Context, FixedDepth, Lesson


@pytest.mark.parametrize("depth", [1, 4, 6])
def test_everybody_runs_as_deep(depth: int, make_context: Callable[..., Context]) -> None:
    policy = FixedDepth(FixedDepthConfig(depth=depth))
    assert policy.plans
    assert policy.plan(make_context(2, 3)).tolist() == [[depth] * 3] * 2


def test_nothing_is_learned(lesson: Lesson) -> None:
    policy = FixedDepth(FixedDepthConfig(depth=1))
    assert not policy.needs_training
    assert policy.losses(lesson) == {}
    assert list(policy.parameters()) == []
