"""From counts of words to a depth for every word: the table that is kept beside a model.

    v(x) = −log max(MI(x), floor)        w = (max v − min v) / N        over the words of the training data
    d(x) = min(⌊(v(x) − min v) / w⌋ + 1, N)

so that words which tell much about the label run few of the N blocks, and those that tell nothing run all. Other
estimators are controls: ``frequency`` has v(x) = −log of the share of documents with the word, ``random`` deals the
depths of mutual information out anew, so that as many tokens (or different words) have each depth as before, and
``fixed`` gives all words one.

Some options go beyond the paper. With ``deep: informative`` v changes its sign. Bins by ``tokens`` look at F(x), the
share of training tokens in words with a lower v, and half of those in words with the same:

    d(x) = min(⌊N · F(x)^p⌋ + 1, N)

with p = 1, so that as many tokens have each depth, or with that p by which they run ``mean_depth`` blocks in the mean.
Where no bin is to be below a ``least`` depth, N − least + 1 bins begin there.

Source: Liu et al. 2021, "Faster Depth-Adaptive Transformers", section 3.1, as read in ``docs/in-advance.md``.
"""

import hashlib
import json
import logging
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from depthwise.config import WordDepthsConfig, as_dict
from depthwise.depth.mutual_information import Counts, Values, WordCounts
from depthwise.errors import DataError

Depths = npt.NDArray[np.int64]
MOST_BENT, FINEST = 10.0, 1e-9
"""The logarithm of the highest power that is tried to have tokens run so many blocks, and how well it is found."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WordTable:
    """The depth of every word of the training data, and what it follows from.

    ``values`` are v(x) before bins were made; ``information`` is there where labels were counted. ``tokenizer`` is the
    digest of the tokenizer by which words are normalised and whose pieces get these depths.
    """

    counts: WordCounts
    depths: Depths
    unseen_depth: int
    options: WordDepthsConfig
    num_layers: int
    tokenizer: str
    information: Values | None = None
    values: Values | None = None
    _places: dict[str, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._places.update(zip(self.counts.words, range(len(self.counts.words)), strict=True))

    def depth_of(self, word: str) -> int:
        """The depth of a word as it is counted: normalised."""
        place = self._places.get(word)
        return self.unseen_depth if place is None else int(self.depths[place])

    def place_of(self, word: str) -> int | None:
        """Which of the words this is; none where training never saw it."""
        return self._places.get(word)

    def histogram(self) -> Counts:
        """How many words have each depth, from 1 to all blocks."""
        found: Counts = np.bincount(self.depths, minlength=self.num_layers + 1)[1:]
        return found

    @property
    def digest(self) -> str:
        """Tells whether two tables give all words the same depths, in whatever order."""
        content = [self.num_layers, self.unseen_depth, self.options.words, self.options.special, self.tokenizer]
        digest = hashlib.sha256(json.dumps(content).encode())
        order = sorted(self._places)
        digest.update("\n".join(order).encode())
        digest.update(self.depths[[self._places[word] for word in order]].astype("<i8").tobytes())
        return digest.hexdigest()

    def summary(self) -> dict[str, Any]:
        """The range of values, the width of a bin and the histogram, which decide all depths."""
        found: dict[str, Any] = {}
        if self.values is not None and len(self.values):
            low, high = _ends(self.values[self.counts.frequencies() >= self.options.min_documents], self.options)
            found = {"min": low, "max": high}
            if self.options.bins == "width" and self.options.estimator != "reconstruction_table":
                found["width"] = (high - low) / (self.num_layers - self.options.least + 1)
        return {**found, "histogram": self.histogram().tolist(), "unseen": self.unseen_depth}


def word_table(
    counts: WordCounts,
    options: WordDepthsConfig,
    *,
    num_layers: int,
    tokenizer: str,
    tokens: Counts | None = None,
    seed: int = 0,
) -> WordTable:
    """The depths of all words by the estimator that the options name.

    ``tokens`` says how many tokens each word makes up in all documents, for those who look at that; ``seed`` is that
    of ``random`` where the options name none.
    """
    if not counts.words:
        raise DataError("there is no word to give a depth; give training data with text")
    made = WordTable(counts, np.empty(0, np.int64), 1, options, num_layers, tokenizer)
    if options.estimator == "fixed":
        assert options.depth is not None, "validation asks for it"
        depths = np.full(len(counts.words), options.depth, np.int64)
        return _told(replace(made, depths=depths, unseen_depth=options.depth))
    found = None
    if options.estimator == "frequency":
        shares = counts.frequencies() / counts.num_documents
        values, beyond = -np.log(shares) if options.log_scale else -shares, 0.0
        if options.log_scale:
            beyond = float(np.log(counts.num_documents + 1))
    else:
        found = counts.information(options.added_count)
        values = _scaled(found, options)
        beyond = float(_scaled(np.array([counts.unseen_information(options.added_count)]), options)[0])
    common, once = counts.frequencies() >= options.min_documents, counts.frequencies() == 1
    if not common.any():
        raise DataError(f"no word stands in {options.min_documents} documents; lower model.word_depths.min_documents")
    below = options.least - 1
    if options.bins == "tokens":
        assert tokens is not None
        depths = binned_by_tokens(np.append(values, beyond), values[common], tokens[common], options, num_layers)
    else:
        depths = below + binned(np.append(values, beyond), values[common], options, num_layers - below)
    depths, of_unseen = depths[:-1], int(depths[-1])
    depths[~common] = _unseen(depths, once, of_unseen, options)
    generator = np.random.default_rng(seed if options.seed is None else options.seed)
    if options.estimator == "random" and options.matched == "words":
        depths = generator.permutation(depths)
    unseen = _unseen(depths, once, of_unseen, options)
    if options.estimator == "random" and options.matched == "tokens":
        assert tokens is not None  # words never seen keep their depth: they are tokens too
        depths = dealt_out(depths, tokens, generator)
    return _told(replace(made, depths=depths, unseen_depth=unseen, information=found, values=values))


def binned(values: Values, of_words: Values, options: WordDepthsConfig, num_layers: int) -> Depths:
    """The bin of each value, counted from 1, where the values of all words make the bins.

    Where all words have one value, nothing tells them apart and they run all blocks.
    """
    low, high = _ends(of_words, options)
    if low == high:
        return np.full(len(values), num_layers, np.int64)
    if options.bins == "quantile":
        edges = np.quantile(of_words, np.arange(1, num_layers) / num_layers)
        return 1 + np.searchsorted(edges, values, side="right").astype(np.int64)
    bins = np.floor((values - low) / ((high - low) / num_layers)).astype(np.int64) + 1
    found: Depths = np.clip(bins, 1, num_layers)
    return found


def binned_by_tokens(
    values: Values, of_words: Values, tokens: Counts, options: WordDepthsConfig, num_layers: int
) -> Depths:
    """The same where words with so many tokens make the bins."""
    distinct, places = np.unique(of_words, return_inverse=True)
    if len(distinct) == 1:
        return np.full(len(values), num_layers, np.int64)
    masses = np.bincount(places, weights=tokens)
    shares = (np.cumsum(masses) - masses / 2) / masses.sum()

    bins = num_layers - options.least + 1

    def depths_of(shares: Values, power: float) -> Depths:
        found: Depths = np.minimum(np.floor(bins * shares**power).astype(np.int64) + options.least, num_layers)
        return found

    low, high = 0.0, 0.0
    if options.mean_depth is not None:
        low, high = -MOST_BENT, MOST_BENT
        while high - low > FINEST:  # the higher the power, the less deep
            middle = (low + high) / 2
            mean = np.average(depths_of(shares, np.exp(middle)), weights=masses)
            low, high = (middle, high) if mean > options.mean_depth else (low, middle)
    return depths_of(np.interp(values, distinct, shares, left=0.0, right=1.0), np.exp(high))


def dealt_out(depths: Depths, tokens: Counts, generator: np.random.Generator) -> Depths:
    """Depths at random by which as many tokens have each depth as by these, as far as whole words allow.

    Words that make up most tokens come first. Each draws a depth that still has room for all its tokens, with a chance
    that goes with the room; one for which there is no such depth takes that with most room.
    """
    room = np.bincount(depths, weights=tokens).astype(np.float64)
    mixed = generator.permutation(len(depths))
    order = mixed[np.argsort(-tokens[mixed], kind="stable")]
    chances = generator.random(len(depths))
    found = np.empty_like(depths)
    for place, chance in zip(order.tolist(), chances.tolist(), strict=True):
        wanted = tokens[place]
        open_room = np.where(room >= max(wanted, 1), room, 0.0)
        ends = np.cumsum(open_room)
        chosen = int(np.searchsorted(ends, chance * ends[-1], side="right")) if ends[-1] > 0 else int(room.argmax())
        room[chosen] -= wanted
        found[place] = chosen
    return found


def _unseen(depths: Depths, once: npt.NDArray[np.bool_], of_unseen: int, options: WordDepthsConfig) -> int:
    """The depth of words never seen: ``of_unseen`` by their counts, also where no word stands in one document alone."""
    return rounded_mean(depths[once]) if options.unseen == "once" and once.any() else of_unseen


def rounded_mean(depths: npt.NDArray[Any]) -> int:
    """The mean of depths as a depth; halves go up."""
    return int(np.floor(depths.mean() + 0.5))


def _scaled(information: Values, options: WordDepthsConfig) -> Values:
    values: Values = -np.log(np.maximum(information, options.floor)) if options.log_scale else -information
    return values if options.deep == "uninformative" else -values


def _ends(values: Values, options: WordDepthsConfig) -> tuple[float, float]:
    """The range that bins divide."""
    if options.range_quantile is None:
        return float(values.min()), float(values.max())
    low, high = np.quantile(values, [options.range_quantile, 1 - options.range_quantile])
    return float(low), float(high)


def _told(table: WordTable) -> WordTable:
    options = {name: value for name, value in as_dict(table.options).items() if value is not None}
    log.info("depths of %d words: %s (%s)", len(table.depths), table.summary(), options)
    return table
