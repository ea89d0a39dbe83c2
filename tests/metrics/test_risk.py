"""Promises about risk: bounds against sums by hand, the walk that ends at the first failure, and that it keeps them."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthwise.errors import InputError
from depthwise.metrics.risk import (
    P_VALUES,
    bentkus,
    binomial_interval,
    fewest_examples,
    furthest_passing,
    hoeffding,
)


def test_hoeffding_by_hand() -> None:
    assert hoeffding(0.1, 100, 0.2) == pytest.approx(math.exp(-2))
    assert hoeffding(0.3, 100, 0.2) == 1


@pytest.mark.parametrize(("mean_loss", "num_examples", "risk"), [(0.1, 20, 0.3), (0.0, 7, 0.5), (0.25, 12, 0.4)])
def test_bentkus_against_a_sum_of_fractions(mean_loss: float, num_examples: int, risk: float) -> None:
    chance, most = Fraction(risk).limit_denominator(1000), math.ceil(num_examples * mean_loss - 1e-9)
    tail = sum(
        math.comb(num_examples, count) * chance**count * (1 - chance) ** (num_examples - count)
        for count in range(most + 1)
    )
    assert bentkus(mean_loss, num_examples, risk) == pytest.approx(min(1.0, math.e * float(tail)))


def test_a_rounded_mean_is_no_loss_more() -> None:
    """0.1 + 0.2 is a little more than 0.3: three losses of ten, not four."""
    assert bentkus((0.1 + 0.2), 10, 0.6) == bentkus(0.3, 10, 0.6)


def test_nothing_is_certain_of_every_loss() -> None:
    assert bentkus(1.0, 10, 0.5) == 1


@pytest.mark.parametrize("bound", P_VALUES)
def test_the_walk_ends_at_the_first_failure(bound: str) -> None:
    assert furthest_passing([0.0, 0.02, 0.3, 0.0], 500, 0.1, 0.05, bound) == 1
    assert furthest_passing([0.3, 0.0], 500, 0.1, 0.05, bound) is None
    assert furthest_passing([], 500, 0.1, 0.05, bound) is None
    assert furthest_passing([0.0] * 3, 500, 0.1, 0.05, bound) == 2


def test_nothing_is_asked_for_behind_a_failure() -> None:
    losses = iter([0.0, 0.5, 0.0])
    assert furthest_passing(losses, 500, 0.1, 0.05) == 0
    assert next(losses) == 0.0


@pytest.mark.parametrize("bound", P_VALUES)
@given(risk=st.floats(0.01, 0.9), error=st.floats(0.001, 0.5))
def test_fewest_examples(bound: str, risk: float, error: float) -> None:
    """One example fewer, and not even losses of 0 pass."""
    fewest = fewest_examples(risk, error, bound)
    assert furthest_passing([0.0], fewest + 1, risk, error, bound) == 0
    if fewest > 2:
        assert furthest_passing([0.0], fewest - 2, risk, error, bound) is None


@pytest.mark.parametrize("bound", P_VALUES)
def test_the_promise_is_kept(bound: str) -> None:
    """Over 400 calibration sets, a setting whose expected loss is above δ is chosen at most in a share ε of them."""
    risk, error, num_examples = 0.1, 0.2, 300
    expected = np.array([0.01, 0.05, 0.08, 0.101, 0.3])
    generator = np.random.default_rng(0)
    broken = 0
    for _ in range(400):
        losses = generator.random((num_examples, len(expected))) < expected
        chosen = furthest_passing(losses.mean(0).tolist(), num_examples, risk, error, bound)
        broken += chosen is not None and expected[chosen] > risk
    assert broken <= 400 * error


@pytest.mark.parametrize(("count", "num"), [(1, 10), (7, 10), (9, 10), (13, 200)])
def test_an_interval_of_rates_leaves_the_same_aside_at_both_ends(count: int, num: int) -> None:
    def at_most(most: int, chance: float) -> float:
        return sum(math.comb(num, each) * chance**each * (1 - chance) ** (num - each) for each in range(most + 1))

    low, high = binomial_interval(count, num, 0.9)
    assert low < count / num < high
    assert at_most(count, high) == pytest.approx(0.05)
    assert 1 - at_most(count - 1, low) == pytest.approx(0.05)


def test_an_interval_of_rates_at_the_ends() -> None:
    assert binomial_interval(0, 200) == pytest.approx((0, 1 - 0.025 ** (1 / 200)))
    assert binomial_interval(200, 200) == pytest.approx((0.025 ** (1 / 200), 1))


def test_bad_input() -> None:
    with pytest.raises(InputError, match="there cannot be 3 of 2"):
        binomial_interval(3, 2)
    with pytest.raises(InputError, match="there cannot be 0 of 0"):
        binomial_interval(0, 0)
    with pytest.raises(InputError, match="risk lies between 0 and 1; 0 does not"):
        furthest_passing([0.1], 10, 0, 0.1)
    with pytest.raises(InputError, match=r"chance of breaking the promise lies between 0 and 1; 1\.5 does not"):
        furthest_passing([0.1], 10, 0.1, 1.5)
    with pytest.raises(InputError, match="no examples to calibrate on"):
        furthest_passing([0.1], 0, 0.1, 0.1)
    with pytest.raises(InputError, match="give one of hoeffding, bentkus"):
        furthest_passing([0.1], 10, 0.1, 0.1, "guess")
    with pytest.raises(InputError, match=r"setting 0 has a mean of 1\.1"):
        furthest_passing([1.1], 10, 0.1, 0.1)
