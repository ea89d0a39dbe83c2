"""Answers that are more or less alike, task by task."""

from collections.abc import Callable
from pathlib import Path

import pytest

from depthwise.data import Example
from depthwise.errors import InputError
from depthwise.evaluation import open_run
from depthwise.evaluation.likeness import goodness, likeness

MakeRun = Callable[..., Path]


def example(*texts: str, label: str | None = None) -> Example:
    return Example(texts, label, "file", 1)


def test_labels(make_run: MakeRun) -> None:
    task = open_run(make_run("classes"))
    assert likeness(task, ["good", "bad"], ["good", "good"]).tolist() == [1, 0]
    assert goodness(task, ["good", "bad"], [example("a", label="bad")] * 2).tolist() == [0, 1]


def test_tags(make_run: MakeRun) -> None:
    task = open_run(make_run("leaving tags"))
    assert likeness(task, ["X O X", "", "O"], ["X X X", "", "O"]).tolist() == pytest.approx([2 / 3, 1, 1])
    assert goodness(task, ["X O"], [example("a b", label="O O")]).tolist() == [0.5]


def test_texts(make_run: MakeRun) -> None:
    task = open_run(make_run("translation"))
    same, near, far, silent, both = likeness(
        task,
        ["the small house", "the small horse", "over there", "", ""],
        ["the small house", "the small house", "the small house", "the small house", " "],
    )
    assert same == both == 1
    assert 0 < far + silent < near < 1
    assert goodness(task, ["c b a"], [example("a b c", "c b a")]).tolist() == [1]


def test_what_has_no_likeness(make_run: MakeRun) -> None:
    with pytest.raises(InputError, match="no risk can be promised for them"):
        likeness(open_run(make_run("numbers")), ["1"], ["2"])
    with pytest.raises(InputError):
        likeness(open_run(make_run("text")), ["a"], ["b"])
