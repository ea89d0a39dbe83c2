"""The section ``training.teacher``: what may be written, and for which tasks."""

from typing import Any

import pytest

from depthwise.config import TeacherConfig, parse_recipe, recipe_dict
from depthwise.errors import ConfigError

SMALL: dict[str, Any] = {
    "task": "text_classification",
    "data": {"train": "train.tsv"},
    "model": {"size": "tiny"},
    "training": {"max_updates": 10, "teacher": {"run": "runs/full"}},
}


def problems(options: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_recipe(options)
    return {problem.option: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize("task", ["text_classification", "tagging"])
def test_a_recipe_names_its_teacher(task: str) -> None:
    recipe = parse_recipe({**SMALL, "task": task})
    assert recipe.training.teacher == TeacherConfig(run="runs/full", weight=0.5, temperature=2.0)
    assert parse_recipe(recipe_dict(recipe)) == recipe
    assert parse_recipe({**SMALL, "training": {"max_updates": 10}}).training.teacher is None


@pytest.mark.parametrize(
    ("teacher", "option", "message"),
    [
        ({}, "training.teacher.run", "required but missing; give text"),
        ({"run": "x", "weight": 1.5}, "training.teacher.weight", "1.5 is out of range; give a number from 0 to 1"),
        ({"run": "x", "temperature": 0}, "training.teacher.temperature", "0 is too small; give a number above 0"),
        ({"run": "x", "temperature": float("inf")}, "training.teacher.temperature", "inf is not finite"),
        ({"run": "x", "temperature": "hot"}, "training.teacher.temperature", "expected a number"),
        ({"run": "x", "wieght": 1}, "training.teacher.wieght", "did you mean training.teacher.weight?"),
    ],
)
def test_mistakes(teacher: dict[str, Any], option: str, message: str) -> None:
    found = problems({**SMALL, "training": {"max_updates": 10, "teacher": teacher}})
    assert list(found) == [option]
    assert message in found[option]


@pytest.mark.parametrize(
    "task", ["translation", "summarization", "question_answering", "language_modeling", "masked_language_modeling"]
)
def test_tasks_that_have_no_teacher(task: str) -> None:
    assert problems({**SMALL, "task": task})["training.teacher"] == (
        f"has no effect on {task}, only on text_classification, tagging; leave it out"
    )


def test_numbers_have_no_teacher() -> None:
    found = problems({**SMALL, "data": {"train": "train.tsv", "labels": "number"}})
    assert found == {
        "training.teacher": "tells classes apart, and data.labels=number has none; leave it out",
    }
