"""Weights of exits against values worked out by hand."""

import math

import pytest

from depthwise.depth.exit_weights import OMEGAS, exit_weights, rotated, unlocked
from depthwise.errors import InputError


@pytest.mark.parametrize(
    ("omega", "expected"),
    [
        ("equal", [1.0, 1.0, 1.0]),
        ("linear", [1.0, 4.0, 9.0]),
        ("sqrt", [1.0, 2.0, 3.0]),
        ("inverse_sqrt", [1.0, 1 / 2, 1 / 3]),
        ("inverse", [1.0, 1 / 4, 1 / 9]),
        ("layerskip", [0.0, 6.0, 36.0]),  # 0; 1 + 2 + 3; 8 + (1 + ... + 7)
    ],
)
def test_weights_follow_depth(omega: str, expected: list[float]) -> None:
    """The depths of the exits count, not which exits they are."""
    assert exit_weights(omega, (1, 4, 9)) == pytest.approx(expected, abs=0)


def test_every_name_has_weights() -> None:
    for omega in OMEGAS:
        weights = exit_weights(omega, (1, 2, 3))
        assert all(isinstance(weight, float) for weight in weights)
        assert len(weights) == 3
        assert weights[-1] > 0


def test_layerskip_of_four_layers() -> None:
    """e(l) for l = 0..3 with e_scale 0.5: 0, 0.5·1, 0.5·(1 + 2), 3 + 0.5·(1 + 2)."""
    assert exit_weights("layerskip", (1, 2, 3, 4), scale=0.5) == [0.0, 0.5, 1.5, 4.5]
    assert exit_weights("layerskip", (1, 2, 3, 4), scale=0.0) == [0.0, 0.0, 0.0, 3.0]


@pytest.mark.parametrize("omega", OMEGAS)
def test_a_lone_exit_has_weight(omega: str) -> None:
    assert exit_weights(omega, (1,)) == [1.0]


def test_weights_one_by_one() -> None:
    assert exit_weights([0.0, 2.0, 0.5], (2, 4, 6)) == [0.0, 2.0, 0.5]


def test_an_unknown_name() -> None:
    with pytest.raises(InputError, match=r'^"cubic" is no weighting of exits; choose among equal, linear, .* weights$'):
        exit_weights("cubic", (1, 2))


def test_a_weight_too_few() -> None:
    with pytest.raises(InputError, match=r"^there are 2 weights for 3 exits; give one for each$"):
        exit_weights([1.0, 1.0], (1, 2, 3))


@pytest.mark.parametrize("weights", [[0.0, 0.0], [-1.0, 2.0], [1.0, math.nan], [math.inf, 1.0]])
def test_weights_that_weigh_nothing(weights: list[float]) -> None:
    with pytest.raises(InputError, match=r"^weights of exits are numbers from 0 on, and not all are 0; found "):
        exit_weights(weights, (1, 2))


@pytest.mark.parametrize("scale", [-0.1, math.nan, math.inf])
def test_a_bad_scale(scale: float) -> None:
    with pytest.raises(InputError, match=r"^the scale of the weights of exits is .*, but is a number from 0 on$"):
        exit_weights("layerskip", (1, 2), scale=scale)


def test_exits_take_turns() -> None:
    weights = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert rotated(weights, 0, every=3) == [1.0, 0.0, 0.0, 4.0, 5.0]
    assert rotated(weights, 1, every=3) == [0.0, 2.0, 0.0, 0.0, 5.0]
    assert rotated(weights, 2, every=3) == [0.0, 0.0, 3.0, 0.0, 5.0]
    assert rotated(weights, 3, every=3) == rotated(weights, 0, every=3)


def test_every_exit_counts_as_often() -> None:
    counts = [sum(rotated([1.0] * 7, update, every=3)[index] for update in range(30)) for index in range(7)]
    assert counts == [10.0] * 6 + [30.0]


def test_nothing_to_rotate() -> None:
    assert rotated([1.0, 2.0], 5, every=1) == [1.0, 2.0]
    with pytest.raises(InputError, match=r"^one of every 0 exits cannot count; rotate through 1 or more$"):
        rotated([1.0], 0, every=0)


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (0.0, [0.0, 0.0, 0.0, 4.0]),
        (0.249, [0.0, 0.0, 0.0, 4.0]),
        (0.25, [0.0, 0.0, 3.0, 4.0]),
        (0.375, [0.0, 2.0, 3.0, 4.0]),
        (0.499, [0.0, 2.0, 3.0, 4.0]),
        (0.5, [1.0, 2.0, 3.0, 4.0]),
        (1.0, [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_exits_begin_to_count(progress: float, expected: list[float]) -> None:
    assert unlocked([1.0, 2.0, 3.0, 4.0], progress) == expected


def test_exits_begin_to_count_over_another_share() -> None:
    assert unlocked([1.0, 2.0], 0.9, share=1.0) == [0.0, 2.0]
    assert unlocked([1.0, 2.0], 1.0, share=1.0) == [1.0, 2.0]
    for share in (0.0, 1.1):
        with pytest.raises(InputError, match=rf"^the share of training in which exits begin to count is {share}, "):
            unlocked([1.0, 2.0], 0.5, share=share)
