"""Batches by depth, as a function of numbers."""

from hypothesis import given
from hypothesis import strategies as st

from depthwise.engine.buckets import bucketed


def test_by_depth_then_by_length() -> None:
    assert bucketed([5, 9, 7, 2], [1, 3, 1, 3], max_rows=2) == [[1, 3], [2, 0]]
    assert bucketed([5, 9, 7, 2], [1, 3, 1, 3], max_tokens=14) == [[1], [3, 2], [0]]
    assert bucketed([5, 9], [1, 2]) == [[1, 0]]
    assert bucketed([], []) == []


def test_a_row_that_is_too_long_is_alone() -> None:
    assert bucketed([50, 3, 3], [2, 1, 1], max_tokens=8) == [[0], [1, 2]]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 6)), max_size=30),
    st.integers(1, 5) | st.none(),
    st.integers(1, 40) | st.none(),
)
def test_every_row_once_within_the_room(rows: list[tuple[int, int]], most: int | None, tokens: int | None) -> None:
    lengths, depths = [row[0] for row in rows], [row[1] for row in rows]
    batches = bucketed(lengths, depths, max_rows=most, max_tokens=tokens)
    assert sorted(row for batch in batches for row in batch) == list(range(len(rows)))
    seen = [depths[row] for batch in batches for row in batch]
    assert seen == sorted(seen, reverse=True)
    for batch in batches:
        assert most is None or len(batch) <= most
        assert tokens is None or len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= tokens
