"""Information of words about labels: by its definition, and what must not change it."""

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthwise.depth import mutual_information as module
from depthwise.depth.mutual_information import WordCounter, WordCounts, information, split_documents
from depthwise.errors import DataError

ADDED = 0.1
DOCUMENTS = [("a b b", "x"), ("a c", "y"), ("a b", "x"), ("a d", "z"), ("a", "y")]
documents = st.lists(
    st.tuples(st.lists(st.sampled_from("abcde"), max_size=5).map(" ".join), st.sampled_from("xyz")), min_size=2
).filter(lambda found: len({label for _, label in found}) > 1)
cells = st.tuples(*[st.integers(0, 50)] * 4)


def counted(found: Iterable[tuple[str, str | None]]) -> WordCounts:
    counter = WordCounter()
    counter.add(split_documents(found))
    return counter.counts()


def by_word(counts: WordCounts) -> dict[str, float]:
    return dict(zip(counts.words, counts.information(ADDED).tolist(), strict=True))


def of_cells(*counts: int) -> float:
    both, word_only, label_only, neither = (np.array([count]) for count in counts)
    return float(information(both, word_only, label_only, neither, ADDED)[0])


def by_definition(found: list[tuple[str, str]], word: str) -> float:
    """The double sum as it is written, one document after the other."""
    total = 0.0
    for name in {label for _, label in found}:
        cells = Counter((word in text.split(), label == name) for text, label in found)
        joint = {(a, b): (cells[a, b] + ADDED) / (len(found) + 4 * ADDED) for a in (True, False) for b in (True, False)}
        for (a, b), chance in joint.items():
            of_word, of_label = joint[a, True] + joint[a, False], joint[True, b] + joint[False, b]
            total += chance * math.log(chance / (of_word * of_label))
    return total


@given(documents)
def test_by_definition(found: list[tuple[str, str]]) -> None:
    counts = counted(found)
    assert set(counts.words) == {word for text, _ in found for word in text.split()}
    for word, value in by_word(counts).items():
        assert value >= 0
        assert value == pytest.approx(by_definition(found, word), abs=1e-12)


@given(documents, st.randoms(use_true_random=False))
def test_neither_order_nor_names_of_labels_matter(found: list[tuple[str, str]], random: "object") -> None:
    expected = by_word(counted(found))
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    renamed = [(text, {"x": "third", "y": "a first", "z": "second"}[label]) for text, label in shuffled]
    assert by_word(counted(renamed)) == pytest.approx(expected, abs=1e-12)


@given(cells)
def test_word_and_label_may_change_places(counts: tuple[int, int, int, int]) -> None:
    both, word_only, label_only, neither = counts
    one = of_cells(both, word_only, label_only, neither)
    assert one >= 0
    assert of_cells(both, label_only, word_only, neither) == pytest.approx(one, abs=1e-15)


def test_a_word_in_all_documents_tells_next_to_nothing() -> None:
    few, many = (by_word(counted(DOCUMENTS * times))["a"] for times in (1, 1000))
    assert many < 1e-4 < few
    assert by_word(counted(DOCUMENTS * 1000))["b"] > 1000 * many


def test_presence_counts_and_not_how_often() -> None:
    counts = counted(DOCUMENTS)
    assert dict(zip(counts.words, counts.frequencies().tolist(), strict=True)) == {"a": 5, "b": 2, "c": 1, "d": 1}
    assert counts.labels == ("x", "y", "z")
    assert counts.documents.tolist() == [2, 2, 1]
    assert counts.present[counts.words.index("b")].tolist() == [2, 0, 0]


def test_chunks_and_growing_tables_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(" ".join(f"w{(number * step) % 3001}" for step in range(9)), f"l{number % 5}") for number in range(900)]
    expected = counted(found)
    monkeypatch.setattr(module, "CHUNK_DOCUMENTS", 7)
    monkeypatch.setattr(module, "CHUNK_WORDS", 11)
    other = counted(found)
    assert len(expected.words) > 1024
    assert by_word(other) == pytest.approx(by_word(expected), abs=1e-15)
    assert dict(zip(other.words, other.present.tolist(), strict=True)) == dict(
        zip(expected.words, expected.present.tolist(), strict=True)
    )


def test_words_with_one_name_are_one() -> None:
    counter = WordCounter(str.lower)
    counter.add(split_documents([("Great great GREAT", "x"), ("great", "y")]))
    counts = counter.counts()
    assert (counts.words, counts.present.tolist()) == (("great",), [[1, 1]])


def test_no_labels_and_one_label() -> None:
    with pytest.raises(DataError, match="give labels, or choose the estimator frequency"):
        counted([("a", "x"), ("b", None)])
    with pytest.raises(DataError, match='all documents have the label "x"; mutual information needs at least two'):
        counted([("a", "x"), ("b", "x")]).information(ADDED)
    with pytest.raises(DataError, match="needs at least two labels"):
        counted([]).unseen_information(ADDED)


def test_the_information_of_a_word_never_seen_is_that_of_the_added_counts() -> None:
    balanced, lopsided = counted([("a", "x"), ("b", "y")] * 50), counted([("a", "x")] * 99 + [("b", "y")])
    assert balanced.unseen_information(ADDED) == pytest.approx(0, abs=1e-12)
    expected = 2 * of_cells(0, 0, 99, 1)
    assert lopsided.unseen_information(ADDED) == pytest.approx(expected, rel=1e-9)
    assert np.isfinite(lopsided.information(ADDED)).all()


def test_how_often_words_stand_there_on_request() -> None:
    lines = [("a b a", "x"), ("b", "y"), (" ".join(f"w{number}" for number in range(3000)), "y"), ("a", "x")]
    counter = WordCounter(occurrences=True)
    for line in lines:
        counter.add(split_documents([line]))
    counts = counter.counts()
    assert counts.occurrences is not None
    found = dict(zip(counts.words, counts.occurrences.tolist(), strict=True))
    assert (found["a"], found["b"], found["w2999"], len(found)) == (3, 2, 1, 3002)
    plain = WordCounter()
    plain.add(split_documents(lines))
    assert plain.counts().occurrences is None
    assert plain.counts().present.tolist() == counts.present.tolist()
