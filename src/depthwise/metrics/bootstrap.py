"""Is one system better than another, or was it the choice of test sentences, or the seed?

Paired bootstrap (Koehn 2004): test sets are drawn anew from the examples at hand, with replacement, and both systems
are scored on each. A corpus score is a function of statistics that add up over examples, so a drawn test set is a row
of how often each example was drawn, and all of them are scored by one matrix product.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from depthwise.errors import InputError
from depthwise.metrics.bleu import Bleu, SacreBleu
from depthwise.metrics.bleu_counts import bleu_of_counts
from depthwise.metrics.references import References

DRAWS_AT_ONCE = 1 << 22
"""Bounds memory: a large test set is drawn in several portions, with the same result."""

CorpusScore = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""From summed statistics ``(..., statistics)`` to scores ``(...)``."""


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same examples. ``difference`` is ours minus theirs; ``low`` and ``high`` bound it."""

    ours: float
    theirs: float
    difference: float
    low: float
    high: float
    p_value: float
    confidence: float
    num_resamples: int
    seed: int


@dataclass(frozen=True)
class SeedSummary:
    """A score over several trainings. A single one has no deviation."""

    mean: float
    deviation: float | None
    num_seeds: int


def paired_bootstrap(
    ours: ArrayLike,
    theirs: ArrayLike,
    score: CorpusScore,
    *,
    num_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compares two systems by additive statistics, one row per example.

    The interval is that of percentiles. The p-value is two-sided: how often a drawn difference strays from the mean of
    the drawn ones by at least the observed difference, which is what would be seen if the systems were equally good
    (Riezler & Maxwell 2005); the observed set counts as one draw, so it is never 0.
    """
    first, second = (_table(statistics) for statistics in (ours, theirs))
    if first.shape != second.shape:
        raise InputError(f"the two systems must cover the same examples, but have {len(first)} and {len(second)}")
    if not len(first):
        raise InputError("there are no examples to compare the systems on")
    if num_resamples < 1:
        raise InputError(f"give 1 resample or more, not {num_resamples}")
    if not 0 < confidence < 1:
        raise InputError(f"confidence lies between 0 and 1, and {confidence} does not")
    both = np.stack([first, second], axis=1)  # (examples, systems, statistics)
    here, there = _scores(both.sum(axis=0), score)
    drawn = np.concatenate([_scores(sums, score) for sums in _drawn_sums(both, num_resamples, seed)])
    differences = drawn[:, 0] - drawn[:, 1]
    difference = float(here - there)
    tail = (1 - confidence) / 2
    low, high = np.quantile(differences, [tail, 1 - tail])
    is_as_far = np.abs(differences - differences.mean()) >= abs(difference)
    p_value = (1 + int(is_as_far.sum())) / (1 + num_resamples)
    return Comparison(
        float(here), float(there), difference, float(low), float(high), p_value, confidence, num_resamples, seed
    )


def compare_bleu(
    ours: Sequence[str],
    theirs: Sequence[str],
    references: References,
    *,
    bleu: Bleu | None = None,
    num_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Paired bootstrap of two translations of the same text; sacreBLEU unless another definition is given."""
    definition = SacreBleu() if bleu is None else bleu
    return paired_bootstrap(
        definition.counts(ours, references),
        definition.counts(theirs, references),
        lambda sums: bleu_of_counts(sums, definition.smoothing),
        num_resamples=num_resamples,
        confidence=confidence,
        seed=seed,
    )


def compare_means(
    ours: ArrayLike, theirs: ArrayLike, *, num_resamples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> Comparison:
    """Paired bootstrap of a metric that is the mean of one value per example, such as accuracy."""
    return paired_bootstrap(
        _with_ones(ours),
        _with_ones(theirs),
        lambda sums: sums[..., 0] / sums[..., 1],
        num_resamples=num_resamples,
        confidence=confidence,
        seed=seed,
    )


def over_seeds(values: Sequence[float]) -> SeedSummary:
    """Mean and sample standard deviation (divisor n − 1) of a score over trainings with different seeds."""
    if not len(values):
        raise InputError("there are no scores to summarise")
    scores = np.asarray(values, dtype=np.float64)
    if not np.isfinite(scores).all():
        raise InputError(f"scores must be finite numbers, but are {[float(value) for value in scores]}")
    deviation = float(scores.std(ddof=1)) if len(scores) > 1 else None
    return SeedSummary(float(scores.mean()), deviation, len(scores))


def _with_ones(values: ArrayLike) -> NDArray[np.float64]:
    """Value and count of every example, the statistics of a mean."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise InputError(f"one value per example is needed, not an array of shape {array.shape}")
    return np.stack([array, np.ones_like(array)], axis=1)


def _table(statistics: ArrayLike) -> NDArray[np.float64]:
    table = np.asarray(statistics, dtype=np.float64)
    if table.ndim != 2:
        raise InputError(f"statistics are one row per example, not an array of shape {table.shape}")
    if not np.isfinite(table).all():
        raise InputError(f"example {int(np.argmin(np.isfinite(table).all(axis=1)))} has a value that is not finite")
    return table


def _scores(sums: NDArray[np.float64], score: CorpusScore) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        values = score(sums)
    if not np.isfinite(values).all():
        raise InputError("the score is undefined on some drawn test sets; compare the systems on more examples")
    return values


def _drawn_sums(both: NDArray[np.float64], num_resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Summed statistics ``(resamples, systems, statistics)``, some resamples at a time."""
    num_examples = len(both)
    generator = np.random.default_rng(seed)
    at_once = max(1, DRAWS_AT_ONCE // num_examples)
    flat = both.reshape(num_examples, -1)
    for start in range(0, num_resamples, at_once):
        size = min(at_once, num_resamples - start)
        drawn = generator.integers(num_examples, size=(size, num_examples))
        cells = drawn + num_examples * np.arange(size)[:, None]
        times = np.bincount(cells.ravel(), minlength=size * num_examples).reshape(size, num_examples)
        yield (times.astype(np.float64) @ flat).reshape(size, *both.shape[1:])
