"""Sentence order: segments follow each other in the text, half of them swapped, no document mixed with another."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from depthwise.data import StoreOptions, TokenStore, build_store
from depthwise.data.language import PlainText
from depthwise.data.rows import TextRows
from depthwise.data.sentence_pairs import SWAPPED, PairOptions, SentencePairs
from depthwise.data.tokenizers import TokenizerOptions, train_tokenizer
from depthwise.errors import ConfigError, DataError

NUMBERS = [f"n{number}" for number in range(400)]
TOKENIZER: PreTrainedTokenizerFast = train_tokenizer(
    [" ".join(NUMBERS)], TokenizerOptions("word", 500, pretokenized=True)
)


def stored(folder: Path, documents: list[list[int]]) -> TokenStore:
    """Words are numbered through, lines have the given lengths, empty lines stand between documents."""
    words, text = iter(NUMBERS), ""
    for document in documents:
        text += "".join(" ".join(next(words) for _ in range(length)) + "\n" for length in document) + "\n"
    path = folder / "text"
    path.write_text(text, encoding="utf-8")
    return build_store(PlainText(path, "skip"), [TOKENIZER], StoreOptions(), folder / "cache")


def segments_of(pairs: SentencePairs, number: int) -> tuple[list[int], list[int]]:
    """The numbers of the words of both segments, in the order of the text."""
    row = pairs[number]
    ids = row.texts[0].tolist()
    middle = ids.index(2)
    assert ids[-1] == 2
    halves = [
        [int(TOKENIZER.convert_ids_to_tokens(i)[1:]) for i in part] for part in (ids[:middle], ids[middle + 1 : -1])
    ]
    first, second = halves[::-1] if row.label == SWAPPED else halves
    return first, second


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=4),
    st.integers(4, 30),
    st.booleans(),
    st.integers(0, 3),
)
def test_segments(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], limit: int, across: bool, epoch: int
) -> None:
    documents = [*documents, [1, 1]]
    store = stored(tmp_path_factory.mktemp("pairs"), documents)
    pairs = SentencePairs(store, TOKENIZER, PairOptions(limit, across_empty_lines=across))
    pairs.set_epoch(epoch)
    ends = np.cumsum([sum(document) for document in documents])
    borders = np.cumsum([length for document in documents for length in document])
    used: list[int] = []
    for number in range(len(pairs)):
        first, second = segments_of(pairs, number)
        both = first + second
        assert both == list(range(both[0], both[0] + len(both)))  # they meet, in order, without a gap
        assert first
        assert second
        assert second[0] in borders
        assert len(both) + 2 == pairs.lengths()[number, 0] <= limit
        assert across or np.searchsorted(ends, both[0], "right") == np.searchsorted(ends, both[-1], "right")
        used += both
    assert sorted(set(used)) == sorted(used)
    if max(map(max, documents)) * 2 + 2 <= limit:
        lone = sum(len(document) == 1 for document in documents)
        assert across or pairs.num_left_out >= lone
        assert len(used) + 9 * pairs.num_left_out >= ends[-1]


def test_half_are_swapped_and_epochs_differ(tmp_path: Path) -> None:
    pairs = SentencePairs(stored(tmp_path, [[1] * 400]), TOKENIZER, PairOptions(4))
    assert len(pairs) == 200
    labels = [[pairs[number].label for number in range(200)] for _ in range(2)]
    assert labels[0] == labels[1]
    assert abs(sum(labels[0]) - 100) < 30
    pairs.set_epoch(1)
    assert [pairs[number].label for number in range(200)] != labels[0]
    static = SentencePairs(pairs.store, TOKENIZER, PairOptions(4, dynamic=False))
    before = [static[number].label for number in range(200)]
    static.set_epoch(1)
    assert [static[number].label for number in range(200)] == before
    assert pairs[~3].ignored
    assert pairs[~3].index == 3


def test_long_lines_are_shortened_at_their_outer_ends(tmp_path: Path) -> None:
    store = stored(tmp_path, [[10, 20], [2, 20], [20, 3], [5]])
    pairs = SentencePairs(store, TOKENIZER, PairOptions(10))
    assert [segments_of(pairs, number) for number in range(3)] == [
        ([6, 7, 8, 9], [10, 11, 12, 13]),
        ([30, 31], [32, 33, 34, 35, 36, 37]),
        ([67, 68, 69, 70, 71], [72, 73, 74]),
    ]
    assert pairs.lengths()[:, 0].tolist() == [10, 10, 10]
    assert pairs.num_left_out == 1


def test_parts_are_drawn(tmp_path: Path) -> None:
    pairs = SentencePairs(stored(tmp_path, [[1] * 8]), TOKENIZER, PairOptions(100))
    seen = set()
    for epoch in range(100):
        pairs.set_epoch(epoch)
        seen.add(len(segments_of(pairs, 0)[0]))
    assert seen == set(range(1, 8))


def test_lines_of_another_file_are_another_document() -> None:
    """They are counted from 1 again."""
    texts = TextRows([np.array([4, 2])] * 4, [1, 2, 1, 2])
    pairs = SentencePairs(texts, TOKENIZER, PairOptions())
    assert pairs.lengths().tolist() == [[4], [4]]


def test_a_long_document_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each chunk no more lines are counted than fit into it."""
    store, original, num_counted = stored(tmp_path, [[1] * 400]), np.cumsum, []

    def cumsum(sizes: np.ndarray[Any, Any]) -> Any:
        num_counted.append(len(sizes))
        return original(sizes)

    monkeypatch.setattr(np, "cumsum", cumsum)
    assert len(SentencePairs(store, TOKENIZER, PairOptions(12))) == 40
    assert sum(num_counted) == 400


def test_errors(tmp_path: Path) -> None:
    store = stored(tmp_path, [[5], [4]])
    with pytest.raises(DataError, match="holds no two lines that follow each other; give one sentence a line"):
        SentencePairs(store, TOKENIZER, PairOptions())
    assert len(SentencePairs(store, TOKENIZER, PairOptions(across_empty_lines=True))) == 1
    with pytest.raises(ConfigError, match="3 leaves no room beside 2 special tokens"):
        SentencePairs(store, TOKENIZER, PairOptions(3))
    with pytest.raises(ConfigError) as caught:
        PairOptions(1, seed=-1)
    assert [problem.option for problem in caught.value.problems] == ["max_tokens", "seed"]
