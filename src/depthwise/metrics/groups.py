"""Scores whose mean over groups of examples counts, such as BLEU over pairs of languages: small groups weigh like
large ones."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from depthwise.metrics.bootstrap import Comparison, CorpusScore, paired_bootstrap


def compare_means_of_groups(
    ours: ArrayLike, theirs: ArrayLike, groups: Sequence[str], score: CorpusScore
) -> Comparison:
    """Paired bootstrap by the mean of the groups' scores, from additive statistics with one row per example.

    Every group gets columns of its own, where examples of other groups have 0, so that one sum over examples holds the
    statistics of all groups.
    """
    names = sorted(set(groups))
    places = np.array([names.index(group) for group in groups])

    def spread(statistics: ArrayLike) -> NDArray[np.float64]:
        table = np.asarray(statistics, dtype=np.float64)
        wide = np.zeros((len(table), len(names), table.shape[1]))
        wide[np.arange(len(table)), places] = table
        return wide.reshape(len(table), -1)

    def mean_score(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        return score(sums.reshape(*sums.shape[:-1], len(names), -1)).mean(axis=-1)

    return paired_bootstrap(spread(ours), spread(theirs), mean_score)
