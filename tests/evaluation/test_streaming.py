"""Every line of input gets its line of output, whatever it is like and however it arrives."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthwise.data import Row
from depthwise.evaluation import Line, load_run, predict_all, predict_lines, read_chunks, score_lines
from depthwise.evaluation.streaming import FIRST_BLOCK
from depthwise.tasks import Prediction

MakeRun = Callable[..., Path]


def chunks_of(*blocks: bytes, max_chars: int = 100) -> list[list[Line]]:
    """The chunks of a stream that arrives in these blocks."""
    arriving = iter(blocks)
    return list(read_chunks(lambda size: next(arriving, b""), max_chars))


def lines_of(*blocks: bytes, max_chars: int = 100) -> list[Line]:
    return [line for chunk in chunks_of(*blocks, max_chars=max_chars) for line in chunk]


def test_what_has_arrived_is_answered_at_once() -> None:
    chunks = chunks_of(b"one\ntwo\nth", b"ree\n", b"fo", b"ur")
    assert [[line.text for line in chunk] for chunk in chunks] == [["one", "two"], ["three"], ["four"]]
    assert [line.number for chunk in chunks for line in chunk] == [1, 2, 3, 4]


def test_blocks_grow() -> None:
    sizes: list[int] = []

    def read(size: int) -> bytes:
        sizes.append(size)
        return b"a\n" if len(sizes) < 12 else b""

    assert len(list(read_chunks(read, 10))) == 11
    assert sizes[:3] == [FIRST_BLOCK, 2 * FIRST_BLOCK, 4 * FIRST_BLOCK]
    assert sizes[-1] == sizes[-2]


@given(
    st.lists(st.binary(max_size=30).filter(lambda raw: b"\n" not in raw), max_size=6),
    st.lists(st.integers(1, 20), min_size=1, max_size=5),
    st.integers(1, 6),
)
def test_lines_do_not_depend_on_blocks(raw: list[bytes], sizes: list[int], max_chars: int) -> None:
    stream = io.BytesIO(b"".join(line + b"\n" for line in raw))

    def read(size: int) -> bytes:
        sizes.append(sizes.pop(0))
        return stream.read(sizes[-1])

    whole = lines_of(stream.getvalue(), max_chars=max_chars)
    assert [line for chunk in read_chunks(read, max_chars) for line in chunk] == whole
    assert len(whole) == len(raw)
    assert all(len(line.text) <= max_chars for line in whole)


def test_ends_of_lines() -> None:
    assert [line.text for line in lines_of(b"\xef\xbb\xbfa\r\nb\rc\n\n d \nlast")] == ["a", "b\rc", "", " d ", "last"]
    assert lines_of(b"") == []


def test_over_long_lines_are_cut() -> None:
    (first, second, third) = lines_of("ééééé\n".encode(), b"x" * 500, b"y" * 500 + b"\nok\n", max_chars=4)
    assert (first.text, second.text, third.text) == ("éééé", "xxxx", "ok")
    assert first.notes == second.notes == ("is longer than data.max_chars=4 characters and was cut there",)
    assert third.notes == ()


def test_bytes_that_are_no_text() -> None:
    (line,) = lines_of(b"ab\xffcd\n")
    assert line.text == "ab\ufffdcd"
    assert line.notes == ("has bytes that are no UTF-8, from byte 3 on; they were replaced",)


def test_predictions_in_order_with_a_line_for_each(make_run: MakeRun) -> None:
    run = load_run(make_run("translation"), device="cpu")
    texts = ["a b c", "", "b", " \t ", "a\tb", "c c a"]
    (replies,) = predict_lines(run, [[Line(number, text) for number, text in enumerate(texts, start=1)]])
    expected = predict_all(run, [("a b c",), ("b",), ("c c a",)])
    assert [reply.text for reply in replies] == [expected[0].text, "", expected[1].text, "", "", expected[2].text]
    assert [reply.number for reply in replies] == [1, 2, 3, 4, 5, 6]
    assert [reply.notes for reply in replies if reply.notes] == [
        ("has 2 of the 1 columns that are needed: text",),
    ]


def test_depths(make_run: MakeRun) -> None:
    run = load_run(make_run("classes"), device="cpu")
    (replies,) = predict_lines(run, [[Line(1, "a b"), Line(2, "")]], depths=True)
    label, depths = replies[0].text.split("\t")
    assert label in ("good", "bad")
    assert depths == "2 2 2"
    assert replies[1].text == ""


def test_pairs(make_run: MakeRun) -> None:
    run = load_run(make_run("doubled"), device="cpu")
    (replies,) = predict_lines(run, [[Line(1, "a b\tc"), Line(2, "a b"), Line(3, "a\t "), Line(4, "a\tb\tc")]])
    assert [bool(reply.text) for reply in replies] == [True, False, False, False]
    assert [reply.notes for reply in replies[1:]] == [
        ("has 1 of the 2 columns that are needed: text<tab>text",),
        ("has an empty text",),
        ("has 3 of the 2 columns that are needed: text<tab>text",),
    ]


def test_lines_with_too_many_tokens(make_run: MakeRun) -> None:
    """Cut to what the model can take, or to what a batch can hold."""
    folder = make_run("classes")
    text = "a " * 40
    (replies,) = predict_lines(load_run(folder, device="cpu"), [[Line(7, text)]])
    assert replies[0].notes == ("has 41 tokens and was cut to 24",)
    small = load_run(folder, ["evaluation.batch_tokens=10"], device="cpu")
    (replies,) = predict_lines(small, [[Line(7, text)]])
    assert replies[0].notes == ("has 41 tokens and was cut to 10",)
    assert replies[0].text in ("good", "bad")


def test_chunks_are_taken_one_at_a_time(make_run: MakeRun) -> None:
    run = load_run(make_run("classes"), device="cpu")
    taken = []

    def chunks() -> Iterator[list[Line]]:
        for number in (1, 2):
            taken.append(number)
            yield [Line(number, "a")]

    replies = predict_lines(run, chunks())
    next(replies)
    assert taken == [1]


def test_log_probabilities(make_run: MakeRun) -> None:
    run = load_run(make_run("classes"), device="cpu")
    (replies,) = score_lines(run, [[Line(1, "a b\tgood"), Line(2, "a b\tugly"), Line(3, "a b"), Line(4, "")]])
    rows = run.task.scored_rows([("a b",)], ["good"])
    assert float(replies[0].text) == pytest.approx(run.task.log_probabilities(run.model, rows)[0], abs=1e-6)
    assert [reply.text for reply in replies[1:]] == ["", "", ""]
    assert replies[1].notes == ('has no answer: "ugly" is no label of this model, which knows bad, good',)
    assert replies[2].notes == ("has 1 of the 2 columns that are needed: text<tab>output",)
    assert replies[3].notes == ()


def test_predictions_stay_on_their_line(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_run(make_run("classes"), device="cpu")
    monkeypatch.setattr(run.task, "predict", lambda model, batch: [Prediction("two\nlines", None, (1,))])
    (replies,) = predict_lines(run, [[Line(1, "a")]], depths=True)
    assert replies[0].text == "two lines\t1"


def test_one_bad_line_does_not_leave_all_others_alone(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves are tried again until the bad one is by itself."""
    run = load_run(make_run("classes"), device="cpu")
    sizes: list[int] = []
    whole = run.task.scored_rows

    def counted(texts: list[tuple[str, ...]], outputs: list[str]) -> list[Row]:
        sizes.append(len(texts))
        return whole(texts, outputs)

    monkeypatch.setattr(run.task, "scored_rows", counted)
    lines = [Line(number, "a b\tugly" if number == 12 else "a b\tgood") for number in range(1, 17)]
    (replies,) = score_lines(run, [lines])
    assert [reply.number for reply in replies if not reply.text] == [12]
    assert sorted(sizes, reverse=True) == [16, 8, 8, 4, 4, 2, 2, 1, 1]
