"""How many tokens left at each depth, by where they stand, how long their text is, how frequent they are, and by tag.

A histogram is ``{"bins": [names], "counts": [[tokens at depth 1, 2, ...] of each bin]}``; bins without a token are left
out.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from depthwise.report.ranks import Ranks

POSITIONS = (1, 2, 3, 4, 6, 11, 21, 41, 81, 161)
LENGTHS = (1, 6, 11, 21, 41, 81, 161)
RANKS = (1, 11, 101, 1001, 10_001)
UNSEEN = "never seen in training"
MOST_TAGS = 40

Tokens = tuple[Sequence[int], Sequence[int], Sequence[str]]
"""Ids, depths and, where there are any, tags of a text."""


def histograms(texts: Sequence[Tokens], num_layers: int, ranks: Ranks | None) -> dict[str, Any]:
    """All that can be made: by frequency and by tag only where these are known."""
    found = {
        "all": _histogram(texts, num_layers, lambda text, place: (0, "all tokens")),
        "position": _histogram(texts, num_layers, lambda text, place: _bin(POSITIONS, place + 1)),
        "length": _histogram(texts, num_layers, lambda text, place: _bin(LENGTHS, len(text[0]))),
    }
    if ranks is not None:
        found["frequency"] = _histogram(texts, num_layers, lambda text, place: _band(ranks, text[0][place]))
        found["frequency"]["training_examples"] = ranks.num_examples
    if any(text[2] for text in texts):
        tags = Counter(tag for text in texts for tag in text[2] if tag)
        kept = {tag: place for place, (tag, _) in enumerate(tags.most_common(MOST_TAGS))}

        def by_tag(text: Tokens, place: int) -> tuple[int, str] | None:
            tag = text[2][place] if text[2] else ""
            return (kept[tag], tag) if tag in kept else None

        found["tag"] = _histogram(texts, num_layers, by_tag)
    return found


def _histogram(
    texts: Sequence[Tokens], num_layers: int, bin_of: Callable[[Tokens, int], tuple[int, str] | None]
) -> dict[str, Any]:
    counts: dict[tuple[int, str], list[int]] = {}
    for text in texts:
        for place, depth in enumerate(text[1]):
            chosen = bin_of(text, place)
            if chosen is not None and 1 <= depth <= num_layers:
                counts.setdefault(chosen, [0] * num_layers)[depth - 1] += 1
    ordered = sorted(counts)
    return {"bins": [name for _, name in ordered], "counts": [counts[each] for each in ordered]}


def _bin(edges: Sequence[int], value: int) -> tuple[int, str]:
    """Number and name of the bin of a value; the last has no end."""
    for number, (begin, end) in enumerate(pairwise(edges)):
        if value < end:
            return number, str(begin) if end == begin + 1 else f"{begin:,}–{end - 1:,}"
    return len(edges), f"{edges[-1]:,} and more"


def _band(ranks: Ranks, token: int) -> tuple[int, str]:
    rank = ranks.of.get(token)
    if rank is None:
        return len(RANKS) + 1, UNSEEN
    number, name = _bin(RANKS, rank)
    return number, f"rank {name}"
