"""Perplexity from sums and counts."""

import math

import pytest

from depthwise.errors import InputError
from depthwise.metrics import perplexity, perplexity_in_training


def test_a_uniform_model_hesitates_between_all_types() -> None:
    assert perplexity(7 * math.log(50), 7) == pytest.approx(50)
    assert perplexity(0.0, 3) == 1


def test_overflow_is_infinite() -> None:
    assert perplexity(1e6, 1) == math.inf
    assert perplexity(math.inf, 2) == math.inf
    assert math.isfinite(perplexity(709.0, 1))


@pytest.mark.parametrize("count", [0, -1])
def test_nothing_to_average(count: int) -> None:
    with pytest.raises(InputError, match=f"^perplexity needs at least one item to average over, not {count}$"):
        perplexity(1.0, count)


def test_not_a_number() -> None:
    with pytest.raises(InputError, match=r"the model's scores hold NaN$"):
        perplexity(math.nan, 1)
    assert math.isnan(perplexity_in_training(math.nan, 1))
    assert perplexity_in_training(0.0, 3) == 1
