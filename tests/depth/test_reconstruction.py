"""From losses of masked words to depths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from depthwise.config import WordDepthsConfig
from depthwise.depth.reconstruction import MeanDepths, best_depths
from depthwise.errors import DataError

OPTIONS = WordDepthsConfig(estimator="reconstruction_table", run="masked")
losses = arrays(np.float32, (5, 4), elements=st.floats(0, 12, width=32))


def test_the_least_loss_where_blocks_have_a_price() -> None:
    found = np.array([[3, 2, 1, 1], [3, 2.95, 2.9, 2.85], [1, 1, 1, 1], [5, 0, 0, 0]], np.float32)
    assert best_depths(found, (1, 2, 3, 4), 0.1).tolist() == [3, 1, 1, 2]
    assert best_depths(found, (1, 2, 3, 4), 0.0).tolist() == [3, 4, 1, 2]
    assert best_depths(found, (1, 2, 3, 4), 9.0).tolist() == [1, 1, 1, 1]
    assert best_depths(found, (2, 4, 8, 12), 0.1).tolist() == [8, 2, 2, 4]  # exits, and blocks as they are counted
    assert best_depths(np.empty((0, 4), np.float32), (1, 2, 3, 4), 0.1).tolist() == []


@given(losses, st.floats(0, 2), st.floats(0, 2))
def test_depths_fall_as_the_price_rises(found: np.ndarray, first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert (best_depths(found, range(1, 5), high) <= best_depths(found, range(1, 5), low)).all()


def test_means_of_words() -> None:
    means = MeanDepths(str.lower)
    means.add([("The", 4), ("film", 1), ("the", 1)])
    means.add([("the", 4), ("Film", 2), ("once", 2)])
    table = means.table(OPTIONS, num_layers=4, tokenizer="t")
    assert (table.depth_of("the"), table.depth_of("film"), table.depth_of("once")) == (3, 2, 2)
    assert table.depth_of("nobody") == table.unseen_depth == 2
    assert table.values is not None
    assert dict(zip(table.counts.words, table.values.tolist(), strict=True)) == {"the": 3.0, "film": 1.5, "once": 2.0}
    assert dict(zip(table.counts.words, table.counts.frequencies().tolist(), strict=True))["the"] == 2
    assert table.counts.num_documents == 2
    assert "width" not in table.summary()


def test_no_word_at_all() -> None:
    with pytest.raises(DataError, match="there is no word to give a depth"):
        MeanDepths(str.lower).table(OPTIONS, num_layers=4, tokenizer="t")


def test_words_never_seen_where_none_was_seen_once() -> None:
    means = MeanDepths(str)
    means.add([("a", 1), ("b", 4)])
    means.add([("a", 1), ("b", 4)])
    assert means.table(OPTIONS, num_layers=4, tokenizer="t").unseen_depth == 3
