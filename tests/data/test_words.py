"""Words of texts, and numbers of words on the pieces of tokenizers of every kind."""

from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from depthwise.data import ParallelText, StoreOptions, build_store
from depthwise.data.building import store_key
from depthwise.data.lines import LineReport
from depthwise.data.templates import pair_form, pieces_of
from depthwise.data.tokenizers import KINDS, TokenizerOptions, encoded, train_tokenizer
from depthwise.data.word_pieces import WordAligner, WordPieceOptions
from depthwise.data.words import (
    UNMARKED,
    WordMarks,
    WordNormalizer,
    encoded_with_marks,
    with_special,
    words_of,
)

from .conftest import WORDS
from .test_word_pieces import bert_like

TEXT = "Lowest don't  end. (so) lowest"


def marks_of(*known: str, form: str = "parted") -> WordMarks:
    """Words have the numbers of their places, from 1; others have 99."""
    numbers = {word: number for number, word in enumerate(known, start=1)}
    return WordMarks(lambda word: numbers.get(word, 99), form, identity=" ".join(known))


def test_what_a_word_is() -> None:
    assert words_of(TEXT, "blanks") == ["Lowest", "don't", "end.", "(so)", "lowest"]
    assert words_of(TEXT, "parted") == ["Lowest", "don", "'", "t", "end", ".", "(", "so", ")", "lowest"]
    assert words_of(" \t ", "parted") == []


def test_pieces_share_the_number_of_their_word() -> None:
    tokenizer = bert_like()
    (ids,), (numbers,) = encoded_with_marks(tokenizer, ["lowest end."], marks_of("lowest", "end", "."))
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "low", "##est", "e", "##n", "##d", ".", "[SEP]"]
    assert numbers == [UNMARKED, 1, 1, 2, 2, 2, 3, UNMARKED]
    (_,), (whole,) = encoded_with_marks(tokenizer, ["lowest end."], marks_of("lowest", "end.", form="blanks"))
    assert whole == [UNMARKED, 1, 1, 2, 2, 2, 2, UNMARKED]


@pytest.mark.parametrize("kind", [*KINDS, "bert"])
@pytest.mark.parametrize("form", ["parted", "blanks"])
def test_every_piece_has_the_number_of_the_characters_it_is_of(kind: str, form: str) -> None:
    tokenizer = bert_like() if kind == "bert" else train_tokenizer([" ".join(WORDS)] * 3, TokenizerOptions(kind, 100))
    text = " ".join(WORDS)
    words = words_of(text, form)
    marks = marks_of(*dict.fromkeys(words), form=form)
    (ids,), (numbers,) = encoded_with_marks(tokenizer, [text], marks)
    assert ids == encoded(tokenizer, [text])[0]
    assert [number for number in dict.fromkeys(numbers) if number != UNMARKED] == list(
        dict.fromkeys(marks.number_of(word) for word in words)
    )
    pieces = pieces_of(text, tokenizer)
    for (start, end), number in zip(pieces.offsets.tolist(), marks.of_pieces(text, pieces.offsets), strict=True):
        covered = text[start:end].strip()
        assert (number == UNMARKED) == (not covered)
        if covered:
            first = start + len(text[start:end]) - len(text[start:end].lstrip())
            assert marks.number_of(words[len(words_of(text[: first + 1], form)) - 1]) == number or form == "parted"
    assert encoded_with_marks(tokenizer, [], marks) == ([], [])
    assert marks.of_pieces("", np.empty((0, 2), np.int32)).tolist() == []


def test_words_are_seen_as_the_tokenizer_sees_them() -> None:
    small = train_tokenizer(["Low"], TokenizerOptions("bpe", 20, lowercase=True))
    assert WordNormalizer(small)("LOW") == "low"
    assert WordNormalizer(train_tokenizer(["Low"], TokenizerOptions("bpe", 20)))("LOW") == "LOW"
    assert WordNormalizer(bert_like())("\u00ad") == "\u00ad"  # of which the normaliser leaves nothing


@pytest.mark.parametrize(("special", "expected"), [(None, [5, 2, 5, 5]), (1, [1, 2, 5, 1]), (9, [9, 2, 5, 9])])
def test_special_tokens(special: int | None, expected: list[int]) -> None:
    assert with_special(np.array([0, 2, 5, 0], np.uint16), special).tolist() == expected


def test_special_tokens_without_words_run_one_block() -> None:
    assert with_special(np.zeros(2, np.uint16), None).tolist() == [1, 1]


def test_a_store_keeps_numbers_beside_ids(
    corpus: ParallelText, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    marks = marks_of("low", "new", "end", ".")
    options = StoreOptions(max_tokens=20, too_long="cut")
    store = build_store(corpus, [tokenizer] * 2, options, tmp_path / "cache", marks)
    plain = build_store(corpus, [tokenizer] * 2, options, tmp_path / "cache")
    assert store.report.num_cut > 0
    assert plain[0].marks is None
    for index, example in enumerate(corpus.examples(LineReport())):
        row, bare = store[index], plain[index]
        assert row.marks is not None
        for text, ids, numbers, expected in zip(example.texts, row.texts, row.marks, bare.texts, strict=True):
            assert ids.tolist() == expected.tolist()
            _, (whole,) = encoded_with_marks(tokenizer, [text], marks)
            kept = whole if len(whole) <= 20 else [*whole[:19], whole[-1]]
            assert numbers.tolist() == kept


def test_other_numbers_are_another_store(corpus: ParallelText, tokenizer: PreTrainedTokenizerFast) -> None:
    def key(*marks: WordMarks | None) -> str:
        return store_key(corpus, [tokenizer] * 2, StoreOptions(), *marks)

    assert len({key(), key(None), key(marks_of("low")), key(marks_of("new"))}) == 3


def test_numbers_of_words_that_are_given() -> None:
    marks = marks_of("lowest", "end.")
    (row,) = WordAligner(bert_like(), WordPieceOptions(), marks).parts(["lowest", "end.", "3,5"])
    assert row.marks is not None
    assert row.marks.tolist() == [0, 1, 1, 2, 2, 2, 2, 99, 99, 99, 0]
    (bare,) = WordAligner(bert_like(), WordPieceOptions()).parts(["lowest"])
    assert bare.marks is None


def test_numbers_of_two_texts_stand_where_their_ids_do() -> None:
    tokenizer, marks = bert_like(), marks_of("low", "end")
    form = pair_form(tokenizer)
    ids, numbers = (list(map(np.array, found)) for found in encoded_with_marks(tokenizer, ["low low", "end"], marks))
    joined, marked = form.joined(*ids), form.marked(*numbers)
    assert tokenizer.convert_ids_to_tokens(joined.tolist()) == [
        *("[CLS]", "low", "low", "[SEP]"),
        *("e", "##n", "##d", "[SEP]"),
    ]
    assert marked.tolist() == [0, 1, 1, 0, 2, 2, 2, 0]
