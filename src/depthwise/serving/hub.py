"""The runs of one server, and what state it is in."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from depthwise.errors import InputError
from depthwise.evaluation.runs import load_run
from depthwise.serving.encoding import AnswersServed, ClassesServed, TagsServed
from depthwise.serving.generating import TextServed
from depthwise.serving.measuring import NO_MODEL, Metrics
from depthwise.serving.options import ServingOptions
from depthwise.serving.refusals import Refused
from depthwise.serving.served import Served, Spent
from depthwise.tasks import (
    LanguageModeling,
    QuestionAnswering,
    SequenceToSequence,
    Tagging,
    TextClassification,
)

log = logging.getLogger("depthwise.serving")
S = TypeVar("S", bound=Served)
KINDS: tuple[tuple[type[Any], type[Any]], ...] = (
    (SequenceToSequence, TextServed),
    (LanguageModeling, TextServed),
    (TextClassification, ClassesServed),
    (Tagging, TagsServed),
    (QuestionAnswering, AnswersServed),
)
"""By which class the runs of a task are served."""


@dataclass(eq=False)
class Trace:
    """What becomes of one request, for the log and the metrics."""

    endpoint: str
    started: float = field(default_factory=monotonic)
    model: str = NO_MODEL
    outcome: str | None = None
    spent: Spent | None = None


class Hub:
    """Runs by name. Nothing is answered before they are loaded, nor once the server drains."""

    def __init__(self, runs: dict[str, Path], options: ServingOptions) -> None:
        self.runs, self.options, self.metrics = runs, options, Metrics()
        self.models: dict[str, Served] = {}
        self.is_ready = self.is_draining = False
        self.num_active = 0
        """Requests that were accepted and are not answered yet."""

    def load(self) -> None:
        """Load all runs; what is wrong with one of them is an error here."""
        found = {name: served_run(name, folder, self.options) for name, folder in self.runs.items()}
        for served in found.values():
            served.warm_up()
            log.info("%s: %s, %d layers, on %s", served.name, served.kind, served.num_layers, served.run.device)
        self.models = found
        self.metrics.watch(list(found.values()))
        self.is_ready = True

    def close(self) -> None:
        """Finish what was accepted."""
        for served in self.models.values():
            served.close()

    def check_ready(self) -> None:
        if self.is_draining:
            raise Refused(503, "the server is shutting down", "ask another one, or later", kind="shutting_down")
        if not self.is_ready:
            raise Refused(503, "models are still being loaded", "ask again in a moment", kind="loading")

    def served(self, kind: type[S], name: str | None, *, completes: bool = False) -> S:
        """The run of that name, or the only one that fits."""
        self.check_ready()
        fitting = [
            served
            for served in self.models.values()
            if isinstance(served, kind) and (served.completes or not completes)
        ]
        known = ", ".join(served.name for served in fitting)
        if name is None:
            if not fitting:
                raise Refused(404, "no model here does this", "see /v1/models", kind="model_not_found")
            if len(fitting) > 1:
                raise Refused(422, "several models can do this", f"name one of {known}", kind="model_missing")
            return fitting[0]
        for served in fitting:
            if served.name == name:
                return served
        if name in self.models:
            raise Refused(
                422,
                f"the model {name} is for another endpoint",
                f"see its kind, {self.models[name].kind}, in /v1/models",
            )
        remedy = f"name one of {known}" if known else "see /v1/models"
        raise Refused(404, "there is no model of this name", remedy, kind="model_not_found")


def served_run(name: str, folder: Path, options: ServingOptions) -> Served:
    run = load_run(folder, device=options.device, precision=options.precision)
    for task, kind in KINDS:
        if isinstance(run.task, task):
            served: Served = kind(name, run, options)
            return served
    raise InputError(f"{folder} does {run.task.kind}, for which there is no endpoint; serve another run")


def named_runs(arguments: Sequence[str]) -> dict[str, Path]:
    """Folders by the names that clients ask for: ``NAME=FOLDER``, or the last part of the path."""
    found: dict[str, Path] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or Path(argument).exists():
            name, path = Path(argument).resolve().name, argument
        if not name or len(name) > 100 or not name.isprintable():
            raise InputError(f'"{argument}" gives a model no name that clients can write; use NAME=FOLDER')
        if name in found:
            raise InputError(f'two runs would be called "{name}"; tell them apart as NAME=FOLDER')
        found[name] = Path(path)
    return found
