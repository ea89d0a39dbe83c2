"""Merging of windows against a search through every span of every window."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthwise.data.answer_windows import AnswerWindow, WindowOptions, question_windows
from depthwise.data.answers import AnswerOptions, Prediction, merged_answers
from depthwise.data.lines import LineReport
from depthwise.data.squad import Question
from depthwise.data.tokenizers import TokenizerOptions, train_tokenizer
from depthwise.errors import ConfigError, InputError

CONTEXT = "one two  three, four five"
CHARACTERS = train_tokenizer([CONTEXT + "?"], TokenizerOptions("char", 60))


def questions_and_windows(
    contexts: list[str], max_tokens: int, stride: int
) -> tuple[list[Question], list[AnswerWindow]]:
    questions = [Question(f"q{n}", "two?", context, (), "f", 1) for n, context in enumerate(contexts)]
    options = WindowOptions(max_tokens, stride, 4)
    return questions, question_windows(questions, CHARACTERS, options, LineReport(), labelled=False)


def brute_force(
    context: str, windows: list[tuple[AnswerWindow, list[float], list[float]]], options: AnswerOptions
) -> tuple[dict[tuple[int, int], float], float]:
    """The best score of every text that any window can point at, and the null score."""
    found: dict[tuple[int, int], float] = {}
    for window, starts, ends in windows:
        for first, last in product(range(len(window.offsets)), repeat=2):
            if not first <= last < first + options.max_answer_tokens:
                continue
            begin, end = int(window.offsets[first][0]), int(window.offsets[last][1])
            while begin < end and context[begin].isspace():
                begin += 1
            while begin < end and context[end - 1].isspace():
                end -= 1
            score = starts[window.first + first] + ends[window.first + last]
            if begin < end:
                found[begin, end] = max(score, found.get((begin, end), -np.inf))
    return found, min(starts[window.null] + ends[window.null] for window, starts, ends in windows)


@given(data=st.data())
def test_the_best_of_all_spans(data: st.DataObject) -> None:
    contexts = data.draw(st.lists(st.sampled_from([CONTEXT, "one", "two   five"]), min_size=1, max_size=3))
    questions, windows = questions_and_windows(contexts, data.draw(st.integers(8, 25)), data.draw(st.integers(1, 6)))
    options = AnswerOptions(
        max_answer_tokens=data.draw(st.integers(1, 9)),
        num_best=data.draw(st.integers(1, 6)),
        null_threshold=data.draw(st.none() | st.integers(-9, 9).map(float)),
    )
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    top = data.draw(st.sampled_from([2, 50]))  # few values make many ties
    longest = max(len(window.ids) for window in windows)
    starts, ends = generator.integers(0, top, (2, len(windows), longest)).astype(float)
    predictions = merged_answers(questions, windows, starts, ends, options)
    assert [prediction.id for prediction in predictions] == [question.id for question in questions]
    for number, (question, prediction) in enumerate(zip(questions, predictions, strict=True)):
        rows = [row for row, window in enumerate(windows) if window.question == number]
        mine = [(windows[row], starts[row].tolist(), ends[row].tolist()) for row in rows]
        found, null_score = brute_force(question.context, mine, options)
        scores = sorted(found.values(), reverse=True)[: options.num_best]
        assert [span.score for span in prediction.best] == scores
        assert len({(span.start, span.end) for span in prediction.best}) == len(scores)
        for span in prediction.best:
            assert found[span.start, span.end] == span.score
            assert question.context[span.start : span.end] == span.text == span.text.strip()
        assert prediction.null_score == null_score
        assert prediction.null_margin == null_score - scores[0]
        silent = options.null_threshold is not None and null_score - scores[0] > options.null_threshold
        assert prediction.text == ("" if silent else prediction.best[0].text)


def spiked(window: AnswerWindow, width: int, first: int, last: int, height: float) -> tuple[list[float], list[float]]:
    """Scores that are 0 but for one span of the context and the null position, which has 1."""
    starts, ends = [0.0] * width, [0.0] * width
    starts[window.null] = ends[window.null] = 0.5
    starts[window.first + first] = ends[window.first + last] = height
    return starts, ends


def test_by_hand() -> None:
    questions, windows = questions_and_windows([CONTEXT], 16, 5)
    assert [CONTEXT[window.offsets[0, 0] : window.offsets[-1, 1]] for window in windows] == [
        "one two  t",
        "wo  three,",
        "hree, four",
        " four five",
    ]
    scores = [spiked(windows[0], 16, 4, 6, 2.0), *(spiked(window, 16, 1, 4, 3.0) for window in windows[1:])]
    starts, ends = zip(*scores, strict=True)
    (prediction,) = merged_answers(questions, windows, starts, ends, AnswerOptions(num_best=3))
    assert prediction.text == "o  t"
    assert [(span.text, span.score) for span in prediction.best[:3]] == [("o  t", 6.0), ("ree,", 6.0), ("four", 6.0)]
    (short,) = merged_answers(questions, windows, starts, ends, AnswerOptions(max_answer_tokens=3))
    assert (short.text, short.best[0].score) == ("two", 4.0)
    (none,) = merged_answers(questions, windows, starts, ends, AnswerOptions(null_threshold=-5.5))
    assert (none.text, none.best[0].text, none.null_score, none.null_margin) == ("", "o  t", 1.0, -5.0)
    (some,) = merged_answers(questions, windows, starts, ends, AnswerOptions(null_threshold=-5.0))
    assert some.text == "o  t"


def test_the_null_score_is_the_least_of_all_windows() -> None:
    questions, windows = questions_and_windows([CONTEXT], 16, 5)
    starts = np.zeros((len(windows), 16))
    starts[:, windows[0].null] = [9, 9, 2, 9]
    (prediction,) = merged_answers(questions, windows, starts, np.zeros_like(starts), AnswerOptions(null_threshold=2.0))
    assert prediction.null_score == 2.0
    assert prediction.text == "o"


def test_spans_are_sorted_only_where_several_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    questions, windows = questions_and_windows([CONTEXT], 40, 5)
    scores, sorts, original = np.zeros((1, 40)), [], np.argsort

    def argsort(*given: Any, **options: Any) -> Any:
        sorts.append(given)
        return original(*given, **options)

    monkeypatch.setattr(np, "argsort", argsort)
    merged_answers(questions, windows, scores, scores, AnswerOptions())
    assert len(sorts) == 0
    merged_answers(questions, windows, scores, scores, AnswerOptions(num_best=2))
    assert len(sorts) == 1


def test_questions_without_windows_have_no_answer() -> None:
    questions, windows = questions_and_windows(["one", "two"], 16, 5)
    scores = np.zeros((1, 16))
    predictions = merged_answers(questions, windows[1:], scores, scores, AnswerOptions(null_threshold=None))
    assert predictions[0] == Prediction("q0", "", (), np.inf)
    assert predictions[0].null_margin == np.inf
    assert predictions[1].text == "t"


def test_errors() -> None:
    questions, windows = questions_and_windows(["one", "two"], 16, 5)
    scores = np.zeros((3, 16))
    with pytest.raises(InputError, match="the windows of question 0 do not follow each other"):
        merged_answers(questions, [*windows, windows[0]], scores, scores, AnswerOptions())
    with pytest.raises(InputError, match=r"a window of 9 tokens needs as many scores, not an array of shape \(8,\)"):
        merged_answers(questions, windows, scores[:2, :8], scores[:2], AnswerOptions())
    with pytest.raises(InputError, match="the scores of question 1 hold NaN"):
        merged_answers(questions, windows, scores[:2], [[0.0] * 16, [np.nan] * 16], AnswerOptions())
    with pytest.raises(ConfigError) as caught:
        AnswerOptions(0, 0)
    assert [problem.option for problem in caught.value.problems] == ["max_answer_tokens", "num_best"]
