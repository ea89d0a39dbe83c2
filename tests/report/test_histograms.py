"""Tokens counted by depth, in bins that read well."""

from depthwise.report.histograms import UNSEEN, histograms
from depthwise.report.ranks import Ranks

TEXTS = [
    ([7, 8, 9, 7, 5, 5, 5], [1, 2, 3, 1, 1, 1, 1], ["X", "O", "", "X", "O", "O", "O"]),
    ([8], [3], ["X"]),
]


def test_by_position_and_length() -> None:
    found = histograms(TEXTS, 3, None)
    assert found["all"] == {"bins": ["all tokens"], "counts": [[5, 1, 2]]}
    assert found["position"]["bins"] == ["1", "2", "3", "4–5", "6–10"]
    assert found["position"]["counts"] == [[1, 0, 1], [0, 1, 0], [0, 0, 1], [2, 0, 0], [2, 0, 0]]
    assert found["length"] == {"bins": ["1–5", "6–10"], "counts": [[0, 0, 1], [5, 1, 1]]}
    assert "frequency" not in found


def test_by_frequency() -> None:
    ranks = Ranks({7: 1, 8: 11, 5: 10_001}, 99)
    found = histograms(TEXTS, 3, ranks)["frequency"]
    assert found["bins"] == ["rank 1–10", "rank 11–100", "rank 10,001 and more", UNSEEN]
    assert found["counts"] == [[2, 0, 0], [0, 1, 1], [3, 0, 0], [0, 0, 1]]
    assert found["training_examples"] == 99


def test_by_tag_the_most_frequent_first() -> None:
    found = histograms(TEXTS, 3, None)["tag"]
    assert found == {"bins": ["O", "X"], "counts": [[3, 1, 0], [2, 0, 1]]}


def test_no_tags_no_histogram_of_them() -> None:
    assert "tag" not in histograms([([1], [1], ())], 2, None)
