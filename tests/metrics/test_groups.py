"""Comparisons by the mean over groups."""

from dataclasses import asdict

import numpy as np
import pytest

from depthwise.metrics import compare_means, compare_means_of_groups


def mean(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def test_small_groups_weigh_like_large_ones() -> None:
    groups = ["large"] * 90 + ["small"] * 10
    ours = [(1.0, 1.0)] * 90 + [(0.0, 1.0)] * 10
    theirs = [(0.0, 1.0)] * 90 + [(1.0, 1.0)] * 10
    found = compare_means_of_groups(ours, theirs, groups, mean)
    assert (found.ours, found.theirs, found.difference) == (0.5, 0.5, 0.0)
    plain = compare_means([value for value, _ in ours], [value for value, _ in theirs])
    assert plain.difference == pytest.approx(0.8)


def test_one_group_is_the_plain_comparison() -> None:
    values = np.random.default_rng(0).random((2, 50))
    tables = [np.stack([row, np.ones(50)], axis=1) for row in values]
    found, plain = compare_means_of_groups(tables[0], tables[1], ["only"] * 50, mean), compare_means(*values)
    assert asdict(found) == pytest.approx(asdict(plain))


def test_a_group_that_was_not_drawn_has_no_part() -> None:
    found = compare_means_of_groups([(1.0, 1.0), (3.0, 1.0)], [(0.0, 1.0), (0.0, 1.0)], ["a", "b"], mean)
    assert (found.ours, found.low, found.high) == (2.0, 1.0, 3.0)
