"""Another run that a training learns from, as plain data: the section ``training.teacher`` of a recipe."""

from collections.abc import Iterator
from dataclasses import dataclass

from depthwise.config.parsing import Rules, finite
from depthwise.errors import Problem


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """A finished run of the same task, with the same labels and tokenizer, whose scores are learned beside labels.

    loss = (1 − w)·task loss + w·T²·KL(softmax(z_teacher / T) ‖ softmax(z_student / T))     (Hinton et al. 2015)
    """

    run: str
    """The folder of that run."""
    weight: float = 0.5
    """w, the share of what is learned from it; the rest is from labels."""
    temperature: float = 2.0
    """T: the higher, the more its second choices count."""


def _share(value: float) -> str | None:
    return None if 0 <= value <= 1 else f"{value} is out of range; give a number from 0 to 1"


RULES: Rules = {"weight": _share}
"""What each option demands by itself; all temperatures of a recipe are above 0."""


def teacher_problems(teacher: TeacherConfig, labels: str) -> Iterator[Problem]:
    """What keeps a run from teaching data with such labels; each option is right by itself."""
    if (message := finite(teacher.temperature)) is not None:
        yield Problem("training.teacher.temperature", message)
    if labels == "number":
        yield Problem("training.teacher", "tells classes apart, and data.labels=number has none; leave it out")
