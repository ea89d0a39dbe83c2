"""BLEU from its sufficient statistics: ten counts per sentence, which add up over a corpus.

    BLEU = 100 · min(1, exp(1 − r/h)) · (p₁·p₂·p₃·p₄)^¼      pₙ = matchesₙ / totalₙ          (Papineni et al. 2002)

with h and r the summed lengths of hypotheses and of their closest references. Since the counts add, a corpus that is
drawn anew from the same sentences is scored without looking at the text again.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MAX_ORDER = 4

Smoothing = Literal["none", "exp"]


def count_sentence(hypothesis: Sequence[bytes], references: Sequence[Sequence[bytes]]) -> list[int]:
    """The ten counts of one tokenised sentence: lengths of hypothesis and reference, matches and n-grams by order.

    Matches are clipped by the reference that has the n-gram most often. Of several references the one closest in
    length counts, the shorter one where two are equally close.
    """
    length = len(hypothesis)
    closest = min((abs(len(reference) - length), len(reference)) for reference in references)[1]
    matches, totals = [], []
    for order in range(1, MAX_ORDER + 1):
        allowed: Counter[tuple[bytes, ...]] = Counter()
        for reference in references:
            allowed |= _ngrams(reference, order)
        matches.append((_ngrams(hypothesis, order) & allowed).total())
        totals.append(max(length - order + 1, 0))
    return [length, closest, *matches, *totals]


def _ngrams(tokens: Sequence[bytes], order: int) -> Counter[tuple[bytes, ...]]:
    return Counter(zip(*(tokens[start:] for start in range(order)), strict=False))


def bleu_of_counts(counts: NDArray[np.float64], smoothing: Smoothing) -> NDArray[np.float64]:
    """BLEU (0 to 100) of summed counts, for any number of corpora at once: ``(..., 10) -> (...)``.

    ``none``: an order without a match makes the whole 0. ``exp``: the k-th order without a match counts as 2⁻ᵏ
    matches, as NIST's scorer and sacreBLEU do. A corpus without any match, or whose sentences are all shorter than
    four tokens, scores 0 under both.
    """
    hypothesis, reference = counts[..., 0], counts[..., 1]
    matches, totals = counts[..., 2 : 2 + MAX_ORDER], counts[..., 2 + MAX_ORDER :]
    has_match = matches.any(axis=-1)
    if smoothing == "exp":
        is_missed = matches == 0
        matches = np.where(is_missed, 0.5 ** np.cumsum(is_missed, axis=-1), matches)
    precisions = np.where(totals > 0, matches / np.maximum(totals, 1), 0.0)
    with np.errstate(divide="ignore"):
        geometric_mean = np.exp(np.log(precisions).mean(axis=-1))
    brevity = np.exp(np.minimum(0.0, 1.0 - reference / np.maximum(hypothesis, 1)))
    return np.where(has_match, 100.0 * brevity * geometric_mean, 0.0)
