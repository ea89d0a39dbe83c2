"""Depths of words that are known before a model runs, as plain data: the section ``model.word_depths``.

``depthwise.depth.mutual_information`` and ``depthwise.depth.word_table`` say what comes of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from depthwise.config.parsing import Rules, at_least, choice, finite
from depthwise.errors import Problem

RECONSTRUCTION, RECONSTRUCTION_TABLE = "reconstruction", "reconstruction_table"
RECONSTRUCTION_PREDICTOR = "reconstruction_predictor"
BY_RECONSTRUCTION = (RECONSTRUCTION, RECONSTRUCTION_TABLE, RECONSTRUCTION_PREDICTOR)
BY_PLACE = (RECONSTRUCTION, RECONSTRUCTION_PREDICTOR)
"""Estimators that look at where a word stands."""
ESTIMATORS = ("mutual_information", *BY_RECONSTRUCTION, "frequency", "random", "fixed")
MATCHED = ("tokens", "words")
WORDS = ("parted", "blanks")
BINS = ("width", "quantile", "tokens")
DEEP = ("uninformative", "informative")
UNSEEN = ("once", "smoothed")
SPECIAL = ("max_of_sequence", "min", "all")


@dataclass(frozen=True, kw_only=True)
class WordDepthsConfig:
    """How many blocks each word runs, decided by a table of words that is made from the training data."""

    estimator: str = "mutual_information"
    """``mutual_information`` of word and label; how well a masked model guesses each word where it stands
    (``reconstruction``), in the mean over the training data (``reconstruction_table``), or as far as a small network
    has learned to tell it from the words beside it (``reconstruction_predictor``); or a control: by the ``frequency``
    of words, at ``random`` with the depths of ``mutual_information``, or the same ``fixed`` depth for all."""
    run: str | None = None
    """The folder of the masked language model, with exits, that guesses words (all of ``reconstruction``)."""
    penalty: float = 0.1
    """λ of ``reconstruction``: what a block costs, in nats."""
    copies: int | None = None
    """At most so many masked copies of a text, in each of which every so many-th word is masked; none means a copy for
    every word, as in the paper (all of ``reconstruction``)."""
    predictor_width: int = 64
    """Width of the network of ``reconstruction_predictor``."""
    predictor_epochs: int = 10
    """How often it goes through the training data; the epoch that did best on a tenth of it is kept."""
    depth: int | None = None
    """The depth of all words under ``fixed``."""
    seed: int | None = None
    """Of ``random``; none means that of the recipe."""
    matched: str = "tokens"
    """Whether ``random`` has as many ``tokens`` of each depth as ``mutual_information``, or as many different
    ``words``."""
    words: str = "parted"
    """What a word is: what stands between blanks with each sign of punctuation ``parted`` off, or just what stands
    between ``blanks``."""
    added_count: float = 0.1
    """Added to each of the four counts of a word and a label (smoothing)."""
    floor: float = 1e-12
    """The least information that is told apart, in nats."""
    log_scale: bool = True
    """Whether bins are of −log information, or of −information."""
    bins: str = "width"
    """Bins of equal ``width``, with equally many words (``quantile``), or by how many ``tokens`` words make up."""
    mean_depth: float | None = None
    """How many blocks the tokens of the training data run in the mean (bins by ``tokens``); none means that as many of
    them run each number of blocks."""
    least: int = 1
    """The least depth that a bin gives: bins divide the blocks from there on."""
    deep: str = "uninformative"
    """Which words run deep: those that tell little about the label, as in the paper, or those that tell much
    (``informative``)."""
    range_quantile: float | None = None
    """The share of words at either end whose value is drawn in before bins of equal width are made; none means 0."""
    min_documents: int = 1
    """Words in fewer documents are taken for words that training never saw. The depth of a rare word tells the label of
    the few documents that have it, and a model may learn that instead of what the words say."""
    unseen: str = "once"
    """The depth of words that training never saw: the mean of those seen ``once``, or what counts of 0 give
    (``smoothed``)."""
    special: str = "max_of_sequence"
    """The depth of special tokens: that of the deepest word beside them, the least (``min``), or ``all`` blocks."""


def _between_halves(value: float) -> str | None:
    return None if 0 < value < 0.5 else f"{value} is out of range; give a share above 0 and below 0.5"


def _above_zero(value: float) -> str | None:
    return finite(value) or (None if value > 0 else f"{value} is too small; give a number above 0")


RULES: Rules = {
    "estimator": partial(choice, ESTIMATORS),
    "penalty": partial(at_least, 0),
    "copies": partial(at_least, 1),
    "predictor_width": partial(at_least, 1),
    "predictor_epochs": partial(at_least, 1),
    "matched": partial(choice, MATCHED),
    "depth": partial(at_least, 1),
    "seed": partial(at_least, 0),
    "words": partial(choice, WORDS),
    "added_count": _above_zero,
    "floor": _above_zero,
    "bins": partial(choice, BINS),
    "mean_depth": partial(at_least, 1),
    "least": partial(at_least, 1),
    "deep": partial(choice, DEEP),
    "range_quantile": _between_halves,
    "min_documents": partial(at_least, 1),
    "unseen": partial(choice, UNSEEN),
    "special": partial(choice, SPECIAL),
}
_DEFAULTS = WordDepthsConfig()
_OF_BINS = ("log_scale", "bins", "mean_depth", "least", "range_quantile", "min_documents", "unseen")
_OF_INFORMATION = ("added_count", "floor", "deep")
_OF_RANDOM = ("seed", "matched")
_OF_RECONSTRUCTION = ("run", "penalty", "copies")
_OF_PREDICTOR = ("predictor_width", "predictor_epochs")


def word_depth_problems(options: Any) -> Iterator[Problem]:
    """What of ``WordDepthsConfig`` contradicts itself or has no effect; each option is right by itself."""
    estimator = options.estimator
    if estimator == "fixed" and options.depth is None:
        yield Problem("depth", "required with estimator fixed; give the number of blocks that all words run")
    if estimator in BY_RECONSTRUCTION and options.run is None:
        message = f"required with estimator {estimator}; give the run of a masked language model with exits"
        yield Problem("run", message)
    for name in _idle(estimator):
        if getattr(options, name) != getattr(_DEFAULTS, name):
            yield Problem(name, f"has no effect with estimator {estimator}; remove it")
    if options.bins != "width" and options.range_quantile is not None:
        yield Problem("range_quantile", f"has no effect on bins by {options.bins}; remove it")
    if options.bins != "tokens" and options.mean_depth is not None:
        yield Problem("mean_depth", f"has no effect on bins by {options.bins}; set bins to tokens or remove it")
    if options.mean_depth is not None and options.mean_depth < options.least:
        yield Problem("mean_depth", f"{options.mean_depth} is below the least depth of {options.least}; raise it")


def _idle(estimator: str) -> list[str]:
    """Options that an estimator does not look at."""
    idle = [] if estimator == "fixed" else ["depth"]
    if estimator != "random":
        idle += _OF_RANDOM
    if estimator not in BY_RECONSTRUCTION:
        idle += _OF_RECONSTRUCTION
    if estimator != RECONSTRUCTION_PREDICTOR:
        idle += _OF_PREDICTOR
    if estimator not in ("mutual_information", "random"):
        idle += _OF_INFORMATION
    if estimator == "fixed" or estimator in BY_RECONSTRUCTION:
        idle += _OF_BINS
    return idle
