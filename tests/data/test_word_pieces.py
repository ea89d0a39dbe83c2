"""Tags on pieces of words and back, for tokenizers of every kind."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from depthwise.data.collate import IGNORED
from depthwise.data.conll import TaggedSentence
from depthwise.data.lines import LineReport
from depthwise.data.rows import Rows
from depthwise.data.tokenizers import KINDS, TokenizerOptions, train_tokenizer
from depthwise.data.word_pieces import TaggingCollator, WordAligner, WordPieceOptions, tagged_rows, tags_of_words
from depthwise.errors import ConfigError, DataError

NAMES = ("O", "B-X", "I-X")
WORDS = ["low", "lowest", "größer", "don't", "end.", "(so)", "\u00adx", "😀", "a\u0301e", "3,5"]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    text = [" ".join(WORDS)] * 3
    ours = {kind: train_tokenizer(text, TokenizerOptions(kind, 60)) for kind in KINDS}
    return {**ours, "bert": bert_like()}


def bert_like() -> PreTrainedTokenizerFast:
    """Word pieces between ``[CLS]`` and ``[SEP]``, with control characters removed."""
    letters = sorted(set("".join(WORDS)))
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters), "low", "##est"]
    tokenizer = Tokenizer(models.WordPiece({name: n for n, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def sentence(words: list[str], tags: list[str]) -> TaggedSentence:
    return TaggedSentence(tuple(words), tuple(tags), "f", 7)


def test_first_pieces_carry_the_tag() -> None:
    (row,) = tagged_rows(
        [sentence(["lowest", "end."], ["B-X", "O"])], bert_like(), NAMES, WordPieceOptions(), LineReport()
    )
    pieces = bert_like().convert_ids_to_tokens(row.ids.tolist())
    assert pieces == ["[CLS]", "low", "##est", "e", "##n", "##d", ".", "[SEP]"]
    assert row.words.tolist() == [-1, 0, 0, 1, 1, 1, 1, -1]
    assert row.labels is not None
    assert row.labels.tolist() == [IGNORED, 1, IGNORED, 0, IGNORED, IGNORED, IGNORED, IGNORED]


@pytest.mark.parametrize("kind", [*KINDS, "bert"])
@given(data=st.data())
def test_there_and_back(kind: str, tokenizers: dict[str, PreTrainedTokenizerFast], data: st.DataObject) -> None:
    """Whatever the length of rows, what is read off the labels themselves is the tags."""
    tokenizer = tokenizers[kind]
    words = data.draw(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=9), min_size=1, max_size=4))
    tags = [data.draw(st.lists(st.sampled_from(NAMES), min_size=len(some), max_size=len(some))) for some in words]
    limit = data.draw(st.none() | st.integers(4, 20))
    sentences = [sentence(*both) for both in zip(words, tags, strict=True)]
    rows = tagged_rows(sentences, tokenizer, NAMES, WordPieceOptions(limit), LineReport())
    assert all(len(row.ids) <= (limit or np.inf) for row in rows)
    predicted = [np.where(row.labels == IGNORED, 2, row.labels) for row in rows if row.labels is not None]
    assert tags_of_words(rows, predicted, NAMES, [len(some) for some in words]) == tags
    if limit is None:
        assert [row.ids.tolist() for row in rows] == [tokenizer(" ".join(some))["input_ids"] for some in words]


def test_long_sentences_are_split_between_words() -> None:
    aligner = WordAligner(bert_like(), WordPieceOptions(max_tokens=6))
    rows = aligner.parts(["lowest", "low", "lowest", "lowest", "(so)"], sentence=3)
    assert [row.words.tolist() for row in rows] == [[-1, 0, 0, 1, -1], [-1, 2, 2, 3, 3, -1], [-1, 4, 4, 4, 4, -1]]
    assert {row.sentence for row in rows} == {3}
    narrow = WordAligner(bert_like(), WordPieceOptions(max_tokens=4)).parts(["(so)", "low"])
    assert [row.words.tolist() for row in narrow] == [[-1, 0, 0, -1], [-1, 1, -1]]


def test_long_sentences_are_cut() -> None:
    report, options = LineReport(), WordPieceOptions(max_tokens=5, too_long="cut")
    short, long = sentence(["low"], ["B-X"]), sentence(["low", "lowest", "low"], ["B-X", "I-X", "B-X"])
    rows = tagged_rows([short, long], bert_like(), NAMES, options, report)
    assert [row.words.tolist() for row in rows] == [[-1, 0, -1], [-1, 0, 1, 1, -1]]
    assert (report.num_kept, report.num_cut) == (2, 1)
    predicted = [np.full(5, 1)] * 2  # as long as the longest, with padding
    assert tags_of_words(rows, predicted, NAMES, [1, 3]) == [["B-X"], ["B-X", "B-X", "O"]]


def test_words_that_leave_no_piece() -> None:
    report = LineReport()
    sentences = [sentence(["low", "\u200b", "low"], ["O", "B-X", "O"]), sentence(["\u200b"], ["B-X"])]
    rows = tagged_rows(sentences, bert_like(), NAMES, WordPieceOptions(), report)
    assert [row.words.tolist() for row in rows] == [[-1, 0, 2, -1]]
    assert report.counts == {"no_pieces": 1}
    assert (report.first[0].line, report.num_kept) == (7, 1)
    assert tags_of_words(rows, [np.full(4, 2)], NAMES, [3, 1], missing="?") == [["I-X", "?", "I-X"], ["?"]]


def test_batches() -> None:
    sentences = [sentence(["low"], ["B-X"]), sentence(["lowest", "low"], ["O", "I-X"])]
    rows = Rows(tagged_rows(sentences, bert_like(), NAMES, WordPieceOptions(), LineReport()))
    assert rows.lengths().tolist() == [[3], [5]]
    batch = TaggingCollator(pad_id=0)([rows[0], rows[1], rows[~1]])
    assert batch["input_ids"].tolist()[0][3:] == [0, 0]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5, [1] * 5]
    assert batch["labels"].tolist() == [[-100, 1, -100, -100, -100], [-100, 0, -100, 2, -100], [-100] * 5]
    unlabelled = WordAligner(bert_like(), WordPieceOptions()).parts(["low"])
    assert set(TaggingCollator(0)(unlabelled)) == {"input_ids", "attention_mask"}


def test_errors() -> None:
    with pytest.raises(DataError, match=r'^f:8: tag "B-Y" was never seen in training, which knows O, B-X, I-X; mend'):
        tagged_rows([sentence(["a", "b"], ["O", "B-Y"])], bert_like(), NAMES, WordPieceOptions(), LineReport())
    with pytest.raises(ConfigError) as caught:
        WordPieceOptions(0, "skip")
    assert [problem.option for problem in caught.value.problems] == ["max_tokens", "too_long"]
    with pytest.raises(ConfigError, match="2 leaves no room beside 2 special tokens"):
        WordAligner(bert_like(), WordPieceOptions(2))
    slow: Any = object.__new__(type("SlowTokenizer", (PreTrainedTokenizerBase,), {}))
    with pytest.raises(DataError, match=r"^SlowTokenizer does not say where in the text its pieces stand; use a fast"):
        WordAligner(slow, WordPieceOptions())
