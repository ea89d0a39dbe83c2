"""Scores by groups of examples, such as BLEU by pairs of languages: their mean counts, so that all weigh alike."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from depthwise.metrics.bootstrap import Comparison, CorpusScore, paired_bootstrap


def compare_means_of_groups(
    ours: ArrayLike, theirs: ArrayLike, groups: Sequence[str], score: CorpusScore
) -> Comparison:
    """Paired bootstrap by the mean of the groups' scores, from additive statistics with one row per example.

    Every group gets columns of its own, where examples of other groups have 0, so that one sum over examples holds the
    statistics of all groups. A group that is missing from a drawn test set has no part in its mean.
    """
    names = sorted(set(groups))
    places = np.array([names.index(group) for group in groups])

    def spread(statistics: ArrayLike) -> NDArray[np.float64]:
        table = np.asarray(statistics, dtype=np.float64)
        wide = np.zeros((len(table), len(names), 1 + table.shape[1]))
        wide[np.arange(len(table)), places] = np.insert(table, 0, 1.0, axis=1)
        return wide.reshape(len(table), -1)

    def mean_score(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        by_group = sums.reshape(*sums.shape[:-1], len(names), -1)
        is_there = by_group[..., 0] > 0
        return np.where(is_there, score(by_group[..., 1:]), 0.0).sum(axis=-1) / is_there.sum(axis=-1)

    return paired_bootstrap(spread(ours), spread(theirs), mean_score)
