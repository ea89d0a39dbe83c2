"""Paired bootstrap: repeatable, right on cases with known answers, and equal to a loop over resampled corpora."""

import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from depthwise.errors import InputError
from depthwise.metrics import (
    BLEU_VARIANTS,
    SacreBleu,
    SeedSummary,
    bootstrap,
    compare_bleu,
    compare_means,
    over_seeds,
    paired_bootstrap,
)

WORDS = ["a", "b", "c", "d"]


def sentences(seed: int, size: int = 40) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, size=draw.integers(1, 12))) for _ in range(size)]


def damaged(lines: list[str], share: float) -> list[str]:
    """Every so many-th word replaced by another."""
    every = round(1 / share)
    return [" ".join("x" if at % every == 0 else word for at, word in enumerate(line.split())) for line in lines]


def test_means_have_the_known_spread() -> None:
    """The difference of n draws from ±1 has standard error 1/√n; 95 % lie within 1.96 of these."""
    ours = np.tile([1.0, 0.0], 200)
    found = compare_means(ours, ours[::-1], num_resamples=4000)
    assert (found.ours, found.theirs, found.difference) == (0.5, 0.5, 0.0)
    assert found.high == pytest.approx(1.96 / math.sqrt(400), rel=0.1)
    assert found.low == pytest.approx(-found.high, rel=0.15)
    assert found.p_value == 1


def test_the_p_value_is_that_of_the_normal_approximation() -> None:
    """A mean of 0.1 with deviation 1 over 400 examples is two standard errors from 0: p = 0.0455."""
    values = np.tile([1.1, -0.9], 200)
    found = compare_means(values, np.zeros(400), num_resamples=20_000)
    assert found.difference == pytest.approx(0.1)
    assert found.p_value == pytest.approx(0.0455, abs=0.006)


def test_a_clear_difference_is_seen_from_either_side() -> None:
    better, worse = compare_means([1.0] * 30, [0.0] * 30), compare_means([0.0] * 30, [1.0] * 30)
    assert (better.low, better.high, better.p_value) == (1, 1, 1 / 1001)
    assert (worse.low, worse.high, worse.p_value) == (-1, -1, 1 / 1001)


def test_a_seed_repeats_and_another_differs() -> None:
    ours, theirs = np.random.default_rng(0).random((2, 50))
    first = compare_means(ours, theirs, seed=3)
    assert first == compare_means(ours, theirs, seed=3)
    assert first != compare_means(ours, theirs, seed=4)
    assert (first.seed, first.num_resamples, first.confidence) == (3, 1000, 0.95)


def test_portions_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = np.random.default_rng(0).random((2, 50))
    whole = compare_means(ours, theirs, num_resamples=100)
    monkeypatch.setattr(bootstrap, "DRAWS_AT_ONCE", 7 * 50)
    assert compare_means(ours, theirs, num_resamples=100) == whole


@pytest.mark.parametrize("name", BLEU_VARIANTS)
def test_bleu_equals_scoring_every_drawn_corpus(name: str) -> None:
    variant, references = BLEU_VARIANTS[name], sentences(0)
    ours, theirs = damaged(references, 0.2), damaged(references, 0.5)
    found = compare_bleu(ours, theirs, references, bleu=variant, num_resamples=20, confidence=0.8, seed=5)
    differences = []
    for drawn in np.random.default_rng(5).integers(40, size=(20, 40)):
        mine, yours, right = ([lines[index] for index in drawn] for lines in (ours, theirs, references))
        differences.append(variant.score(mine, right).value - variant.score(yours, right).value)
    assert found.ours == pytest.approx(variant.score(ours, references).value)
    assert found.theirs == pytest.approx(variant.score(theirs, references).value)
    assert found.difference == pytest.approx(found.ours - found.theirs)
    np.testing.assert_allclose([found.low, found.high], np.quantile(differences, [0.1, 0.9]), atol=1e-9)


def test_bleu_of_equal_systems() -> None:
    references = sentences(0)
    found = compare_bleu(damaged(references, 0.2), damaged(references, 0.2), references)
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)
    assert found.ours == pytest.approx(SacreBleu().score(damaged(references, 0.2), references).value)


def test_a_thousand_resamples_of_a_test_set_are_fast() -> None:
    counts = SacreBleu().counts(sentences(0), sentences(1))
    counts = np.tile(counts, (75, 1))  # 3,000 sentences
    start = time.process_time()
    paired_bootstrap(counts, counts, lambda sums: sums[..., 0], num_resamples=1000)
    assert time.process_time() - start < 10


def test_any_score_of_sums() -> None:
    """Perplexity, say: statistics are negative log-likelihood and number of tokens."""
    ours, theirs = np.array([[2.0, 1.0], [4.0, 3.0]]), np.array([[3.0, 1.0], [6.0, 3.0]])
    found = paired_bootstrap(ours, theirs, lambda sums: np.exp(sums[..., 0] / sums[..., 1]))
    assert found.difference == pytest.approx(math.exp(6 / 4) - math.exp(9 / 4))
    assert found.low < found.difference < found.high


def test_over_seeds() -> None:
    assert over_seeds([1.0, 2.0, 4.0]) == SeedSummary(pytest.approx(7 / 3), pytest.approx(math.sqrt(7 / 3)), 3)
    assert over_seeds([2.5]) == SeedSummary(2.5, None, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compare_means([], []), "^there are no examples to compare the systems on$"),
        (lambda: compare_means([1.0], [1.0, 2.0]), "cover the same examples, but have 1 and 2$"),
        (lambda: compare_means([1.0, math.nan], [1.0, 2.0]), "^example 1 has a value that is not finite$"),
        (lambda: compare_means([[1.0]], [[1.0]]), r"^one value per example is needed, not an array of shape \(1, 1\)$"),
        (lambda: compare_means([1.0], [1.0], num_resamples=0), "^give 1 resample or more, not 0$"),
        (lambda: compare_means([1.0], [1.0], confidence=1.0), "^confidence lies between 0 and 1, and 1.0 does not$"),
        (lambda: compare_bleu(["a"], [], ["a"]), "^0 hypotheses but references for 1 texts; give both for each$"),
        (lambda: compare_bleu([], [], []), "^there are no texts to score; give at least one$"),
        (lambda: paired_bootstrap([1.0], [1.0], np.sum), r"^statistics are one row per example, not .* \(1,\)$"),
        (
            lambda: paired_bootstrap([[1.0, 0.0]], [[1.0, 0.0]], lambda sums: sums[..., 0] / sums[..., 1]),
            "^the score is undefined on some drawn test sets",
        ),
        (lambda: over_seeds([]), "^there are no scores to summarise$"),
        (lambda: over_seeds([1.0, math.nan]), r"^scores must be finite numbers, but are \[1.0, nan\]$"),
    ],
)
def test_bad_input(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
