"""Everything that can go wrong through a user's doing, as one small tree.

    DepthwiseError
    ├── ConfigError            options that are unknown, contradictory or out of range; lists all of them
    ├── InputError             a batch that the model cannot take; names the argument and the row
    │   └── LanguageError      a text to translate that names no languages of the model; the remedy stands apart
    ├── DataError              a corpus, tokenizer or batch size that cannot be used; names the file and the line
    ├── CheckpointError        a file of weights or of another library that cannot be read or does not fit; names it
    ├── QueueError             a request that a queue does not take: it is full, or closed
    ├── TrainingError          a training that cannot begin, go on or learn; says what to change
    └── BackendUnavailable     a kernel back end, a device or a package was asked for that is not there

Each message is one clear sentence with the remedy. The command line turns any of these into exit code 1; ``assert`` is
kept for mistakes of our own.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class DepthwiseError(Exception):
    """Root of all errors a user can cause and mend."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a configuration: where it is, what is wrong and what to write instead."""

    option: str
    message: str


class ConfigError(DepthwiseError, ValueError):
    """A configuration that cannot be built. ``problems`` holds every one found, not only the first."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        column = max((len(problem.option) for problem in self.problems), default=0)
        lines = [f"  {problem.option:<{column}}  {problem.message}" for problem in self.problems]
        super().__init__("\n".join([f"{source}: {count}", *lines]))

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, tuple[Problem, ...]]]:
        return type(self), (self.source, self.problems)


class InputError(DepthwiseError, ValueError):
    """A batch that the model cannot take."""


class LanguageError(InputError):
    """A text to translate that names no languages, or others than those of the model.

    ``problem`` is a sentence by itself: the remedy of the message is for lines of a file, and whoever takes inputs in
    another way has one of their own.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy = problem, remedy

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"


class DataError(DepthwiseError, ValueError):
    """A corpus, a tokenizer or a way of batching that cannot be used."""


class CheckpointError(DepthwiseError, ValueError):
    """A file or folder of a trained model that cannot be read, or whose parts do not fit together."""


class QueueError(DepthwiseError, RuntimeError):
    """A request that a queue does not take, through no fault of its own."""


class TrainingError(DepthwiseError, RuntimeError):
    """A training that cannot begin, go on or learn."""


class BackendUnavailable(DepthwiseError, RuntimeError):
    """A kernel back end, a device or an optional package was asked for by name but is not there."""
