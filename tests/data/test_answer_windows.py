"""Windows over long contexts: every token is covered, labels point at the answer, null where it is not whole."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from depthwise.data.answer_windows import AnswerCollator, AnswerWindow, WindowOptions, question_windows
from depthwise.data.lines import LineReport
from depthwise.data.rows import Rows
from depthwise.data.squad import Answer, Question
from depthwise.data.tokenizers import KINDS, TokenizerOptions, train_tokenizer
from depthwise.errors import ConfigError, DataError

WORDS = ["low", "lowest", "größer", "don't", "(so)", "Zug"]


def bert_like() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({name: n for n, name in enumerate(["[P]", "[U]", "[C]", "[S]", *WORDS])}))
    tokenizer.model = models.WordLevel(tokenizer.get_vocab(), unk_token="[U]")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[S]", 3), ("[C]", 2))
    names = {"pad_token": "[P]", "unk_token": "[U]", "cls_token": "[C]", "sep_token": "[S]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def question(context: str, answers: tuple[Answer, ...] = (), asked: str = "low Zug") -> Question:
    return Question("q", asked, context, answers, "dev.json", 7)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    ours = {kind: train_tokenizer([" ".join(WORDS)] * 3, TokenizerOptions(kind, 60)) for kind in KINDS}
    return {**ours, "bert": bert_like()}


def read_back(row: AnswerWindow, context: str) -> str:
    """The text that the label of a window points at."""
    assert row.label is not None
    first, last = (place - row.first for place in row.label)
    return context[row.offsets[first, 0] : row.offsets[last, 1]].strip()


@pytest.mark.parametrize("kind", [*KINDS, "bert"])
@given(data=st.data())
def test_windows(kind: str, tokenizers: dict[str, PreTrainedTokenizerFast], data: st.DataObject) -> None:
    words = data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=25))
    begin = data.draw(st.integers(0, len(words) - 1))
    end = data.draw(st.integers(begin + 1, min(begin + 3, len(words))))
    context = " ".join(words)
    answer = Answer(" ".join(words[begin:end]), len(" ".join([*words[:begin], ""])))
    assert context[answer.start :].startswith(answer.text)
    options = WindowOptions(data.draw(st.integers(12, 60)), data.draw(st.integers(1, 30)), 8)
    tokenizer = tokenizers[kind]
    rows = question_windows([question(context, (answer,))], tokenizer, options, LineReport())
    body = tokenizer(context, add_special_tokens=False)["input_ids"]
    covered, whole = [], 0
    for number, row in enumerate(rows):
        assert len(row.ids) <= options.max_tokens
        width = len(row.offsets)
        place = number * min(options.stride, options.max_tokens - (len(rows[0].ids) - len(rows[0].offsets)))
        assert row.ids[row.first : row.first + width].tolist() == body[place : place + width]
        covered += range(place, place + width)
        assert row.label is not None
        if row.label == (row.null, row.null):
            assert row.null < row.first
        else:
            whole += 1
            assert row.first <= row.label[0] <= row.label[1] < row.first + width
            assert read_back(row, context) == answer.text
    assert set(covered) == set(range(len(body)))
    if len(rows) == 1:
        assert whole == 1
        if len(tokenizer("low Zug", add_special_tokens=False)["input_ids"]) <= 8:
            assert rows[0].ids.tolist() == tokenizer("low Zug", context)["input_ids"]
    else:
        assert covered[-1] == len(body) - 1
        assert len(body) - 1 not in covered[: -len(rows[-1].offsets)]


def test_by_hand() -> None:
    context = " ".join(["low"] * 3 + ["Zug"] * 2 + ["low"] * 3)
    answered = question(context, (Answer("Zug Zug", 12), Answer("low", 0)))
    report = LineReport()
    rows = question_windows([answered, question("low")], bert_like(), WindowOptions(9, 2, 2), report)
    low, zug = (4 + WORDS.index(word) for word in ("low", "Zug"))
    begin = [2, low, zug, 3]
    assert [row.ids.tolist() for row in rows] == [
        [*begin, low, low, low, zug, 3],
        [*begin, low, zug, zug, low, 3],
        [*begin, zug, low, low, low, 3],
        [*begin, low, 3],
    ]
    assert [row.label for row in rows] == [(0, 0), (5, 6), (0, 0), (0, 0)]
    assert [row.question for row in rows] == [0, 0, 0, 1]
    assert {row.null for row in rows} == {0}
    assert (report.num_kept, report.num_cut) == (2, 0)
    unlabelled = question_windows([answered], bert_like(), WindowOptions(9, 2, 2), LineReport(), labelled=False)
    assert [row.label for row in unlabelled] == [None] * 3


def test_long_questions_lose_their_end() -> None:
    report = LineReport()
    (row,) = question_windows([question("low", (), "Zug low low")], bert_like(), WindowOptions(9, 2, 1), report)
    assert len(row.ids) == 5
    assert (report.num_kept, report.num_cut) == (1, 1)


def test_the_null_position_without_a_first_special_token(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    (row,) = question_windows([question("low")], tokenizers["word"], WindowOptions(), LineReport())
    assert row.ids[row.null] == tokenizers["word"].eos_token_id
    assert (row.null, row.first) == (2, 3)


def test_questions_without_pieces_are_left_out() -> None:
    report = LineReport()
    rows = question_windows(
        [
            question("low", (), "\u2003"),
            question("\u2003"),
            question("low \u2003 Zug", (Answer("\u2003", 4),)),
            question("low"),
        ],
        bert_like(),
        WindowOptions(),
        report,
    )
    assert [row.question for row in rows] == [3]
    assert report.counts == {"no_pieces": 3}
    assert [(bad.line, bad.message) for bad in report.first] == [
        (7, "the tokenizer makes nothing of the question"),
        (7, "the tokenizer makes nothing of the context"),
        (7, "the tokenizer makes nothing of the answer"),
    ]


def test_batches() -> None:
    rows = Rows(
        question_windows([question("low Zug", (Answer("Zug", 4),))], bert_like(), WindowOptions(), LineReport())
        + question_windows([question("low")], bert_like(), WindowOptions(), LineReport())
    )
    assert rows.lengths().tolist() == [[7], [6]]
    batch = AnswerCollator(pad_id=0)([rows[0], rows[1], rows[~0]])
    assert batch["labels"].tolist() == [[5, 5], [0, 0], [-100, -100]]
    assert batch["attention_mask"].sum(1).tolist() == [7, 6, 7]
    assert np.array_equal(batch["input_ids"][0], rows[0].ids)
    assert "labels" not in AnswerCollator(0)([rows[0], replace(rows[1], label=None)])
    assert "token_type_ids" not in batch
    types = AnswerCollator(pad_id=0, token_types=True)(rows.rows[:2])["token_type_ids"]
    assert types.sum(1).tolist() == [len(row.ids) - row.first for row in rows.rows[:2]]
    assert types[0, rows[0].first - 1 : rows[0].first + 1].tolist() == [0, 1]


def test_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        WindowOptions(0, 0, 0)
    names = [problem.option for problem in caught.value.problems]
    assert names == ["max_tokens", "stride", "max_question_tokens", "max_question_tokens"]
    with pytest.raises(ConfigError, match="5 leaves no room for a context beside question and special tokens"):
        question_windows([], bert_like(), WindowOptions(5, 1, 2), LineReport())
    bare = bert_like()
    bare.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1")
    with pytest.raises(DataError, match="puts no special token before or between two texts"):
        question_windows([], bare, WindowOptions(), LineReport())
