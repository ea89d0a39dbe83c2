"""Depths by how well a masked word is guessed: as soon as further blocks gain too little, it needs no more.

    loss_n(x_t)     what the head loses of the masked word x_t after n blocks, in nats, the mean over its pieces
    d(x_t)          argmin_n loss_n(x_t) + λ·n, the least n among equals

The paper prints −λ·n, which would reward depth; its Table 4, where depth falls as λ grows, has +λ·n.
Ours -> symbols: penalty -> λ.

``mean_depths`` is what the same word is given in the mean over all places where it stands, so that nothing has to be
masked later on.

Source: Liu et al. 2021, "Faster Depth-Adaptive Transformers", section 3.2, eq. 4.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from depthwise.config import WordDepthsConfig
from depthwise.depth.mutual_information import WordCounts
from depthwise.depth.word_table import WordTable, rounded_mean
from depthwise.errors import DataError

Losses = npt.NDArray[np.float32]
ALL = ""
"""Stands for all labels, none of which is looked at."""


def best_depths(losses: Losses, depths: Sequence[int], penalty: float) -> npt.NDArray[np.int64]:
    """The depth of every word (row) from what is lost at each of these depths (column), which rise."""
    prices = penalty * np.asarray(depths, np.float64)
    found: npt.NDArray[np.int64] = np.asarray(depths, np.int64)[(losses.astype(np.float64) + prices).argmin(axis=1)]
    return found


class MeanDepths:
    """Adds up the depths of words as they come. ``normalize`` says under which name a word is counted."""

    def __init__(self, normalize: Callable[[str], str]) -> None:
        self._normalize = normalize
        self._names: dict[str, str] = {}
        self._sums: dict[str, int] = {}
        self._places: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        self._num_texts = 0

    def add(self, words: Iterable[tuple[str, int]]) -> None:
        """A text as its words with their depths."""
        here = set()
        for word, depth in words:
            name = self._names.get(word)
            if name is None:
                name = self._names[word] = self._normalize(word)
            self._sums[name] = self._sums.get(name, 0) + depth
            self._places[name] = self._places.get(name, 0) + 1
            here.add(name)
        for name in here:
            self._texts[name] = self._texts.get(name, 0) + 1
        self._num_texts += 1

    def table(self, options: WordDepthsConfig, *, num_layers: int, tokenizer: str) -> WordTable:
        """Every word with its mean depth, rounded; those never seen have that of words seen once, or of all."""
        names = tuple(self._sums)
        if not names:
            raise DataError("there is no word to give a depth; give training data with text")
        means = np.array([self._sums[name] / self._places[name] for name in names])
        texts = np.array([self._texts[name] for name in names], np.int64)
        counts = WordCounts(names, (ALL,), texts[:, None], np.array([self._num_texts], np.int64))
        depths = np.floor(means + 0.5).astype(np.int64)
        once = means[texts == 1]
        unseen = rounded_mean(once if len(once) else means)
        return WordTable(counts, depths, unseen, options, num_layers, tokenizer, values=means)
