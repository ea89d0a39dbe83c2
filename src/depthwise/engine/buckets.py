"""Batches of rows of similar depth: a block then runs for nearly all rows of a batch, or for none."""

from collections.abc import Sequence


def bucketed(
    lengths: Sequence[int], depths: Sequence[int], *, max_rows: int | None = None, max_tokens: int | None = None
) -> list[list[int]]:
    """Numbers of rows, batch by batch, the deepest first and among those of one depth the longest.

    A batch has at most ``max_rows`` rows and, padding included, ``max_tokens`` tokens, but at least one row. It may
    hold rows of neighbouring depths, so that all but the last are as large as they may be.
    """
    assert len(lengths) == len(depths)
    order = sorted(range(len(lengths)), key=lambda row: (-depths[row], -lengths[row], row))
    batches: list[list[int]] = []
    longest = 0
    for row in order:
        width = max(longest, lengths[row])
        size = len(batches[-1]) + 1 if batches else 0
        is_full = (max_rows is not None and size > max_rows) or (max_tokens is not None and size * width > max_tokens)
        if not batches or is_full:
            batches.append([])
            width = lengths[row]
        batches[-1].append(row)
        longest = width
    return batches
