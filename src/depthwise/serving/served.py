"""A run that is being served: what all kinds share."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, TypeVar

from depthwise.data import LineReport, LineRules
from depthwise.errors import DepthwiseError, InputError
from depthwise.evaluation.runs import Run
from depthwise.serving.depth_choices import WORDS, Asked, DepthChoices, Setting
from depthwise.serving.options import ServingOptions
from depthwise.serving.refusals import Refused
from depthwise.serving.schemas import (
    Cost,
    DepthReport,
    Depths,
    ModelDescription,
    ModelLimits,
    NamedSetting,
)

Found = TypeVar("Found")
SHORT = 1000
"""Characters that are tokenised in less time than it takes to ask another thread."""


@dataclass(frozen=True)
class Spent:
    """How deep the tokens of an answer ran, and how long that took."""

    depths: tuple[int, ...]
    waited: float
    seconds: float
    num_read: int
    """Tokens of the input."""
    num_made: int = 0
    """New tokens, where text is generated."""


class Served(ABC):
    """One run under a name. Its texts become ids one at a time: tokenizers are not for several threads."""

    kind: ClassVar[Any]

    def __init__(self, name: str, run: Run, options: ServingOptions) -> None:
        self.name, self.run, self.task, self.options = name, run, run.task, options
        self.depths = DepthChoices(run, options.depth)
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="depthwise texts")
        self._is_preparing = threading.Lock()
        self.examples = self._examples(options.num_examples)

    @property
    @abstractmethod
    def num_waiting(self) -> int: ...

    @property
    @abstractmethod
    def num_running(self) -> int: ...

    @abstractmethod
    def warm_up(self) -> None:
        """Have done what is done only once, so that the first request need not wait for it."""

    def close(self) -> None:
        """Finish what was taken."""
        self._preparing.shutdown()

    # Texts

    def prepare(self, num_chars: int, make: Callable[[], Found]) -> "Future[Found]":
        """Have a text made ids: at once where it is short and nobody else is at it, else in a thread."""
        found: Future[Found] = Future()
        if num_chars <= SHORT and self._is_preparing.acquire(blocking=False):
            try:
                found.set_result(make())
            except Exception as error:
                found.set_exception(error)
            finally:
                self._is_preparing.release()
            return found

        def in_turn() -> Found:
            with self._is_preparing:
                return make()

        return self._preparing.submit(in_turn)

    # Depth

    def setting(self, asked: Asked | None) -> Setting:
        try:
            return self.depths.chosen(asked)
        except InputError as error:
            raise Refused.because(error) from None

    def depth_report(self, asked: Asked | None, setting: Setting, spent: Spent) -> DepthReport:
        mean = sum(spent.depths) / max(1, len(spent.depths))
        told = self.depths.default if asked is None else asked
        return DepthReport(asked=told, policy=setting.told, mean=mean, layers=self.num_layers)

    def cost(self, spent: Spent) -> Cost:
        return Cost(
            token_layers=sum(spent.depths),
            full_token_layers=len(spent.depths) * self.num_layers,
            seconds=spent.seconds,
            queued_seconds=spent.waited,
        )

    @property
    def num_layers(self) -> int:
        return self.depths.num_layers

    # Limits

    @property
    def input_tokens(self) -> int:
        """The most tokens of an input."""
        own = [limit for limit in self.task.text_limits[:1] if limit is not None]
        return min(self.options.limits.input_tokens, *own)

    @property
    def new_tokens(self) -> int | None:
        """The most tokens of a text that is generated."""
        return None

    def check_length(self, num_tokens: int, most: int | None = None) -> None:
        most = self.input_tokens if most is None else most
        if num_tokens > most:
            raise Refused(
                422, f"the input has {num_tokens:,} tokens, more than {most:,}", "shorten it", kind="input_too_long"
            )

    # What it is

    @property
    def languages(self) -> list[str] | None:
        return None

    @property
    def labels(self) -> list[str] | None:
        return None

    @property
    def takes_pairs(self) -> bool:
        return False

    @property
    def completes(self) -> bool:
        return False

    def description(self) -> ModelDescription:
        limits, choices = self.options.limits, self.depths
        settings = [
            NamedSetting(
                name=name,
                policy=choices.named[name].told,
                goal=found.goal,
                budget_met=found.budget_met,
                quality=found.quality,
                full_quality=found.full_quality,
                metric=found.metric,
                mean_depth=found.mean_depth,
                compute=found.flops / max(1, found.full_flops),
            )
            for name, found in choices.calibrated.items()
        ]
        if choices.by_words:
            settings.append(NamedSetting(name=WORDS, policy=choices.named[WORDS].told))
        return ModelDescription(
            name=self.name,
            task=self.task.kind,
            kind=self.kind,
            layers=self.num_layers,
            depths=Depths(
                default=choices.default,
                full=True,
                fixed=sorted(choices.fixed),
                settings=settings,
                budgets=bool(choices.measured),
            ),
            languages=self.languages,
            labels=self.labels,
            pair=self.takes_pairs,
            completions=self.completes,
            limits=ModelLimits(
                input_tokens=self.input_tokens,
                new_tokens=self.new_tokens,
                body_bytes=limits.body_bytes,
                waiting=limits.waiting,
                seconds=limits.seconds,
            ),
            examples=self.examples,
        )

    def example(self, texts: tuple[str, ...]) -> str:
        """An input as people write it."""
        return "\t".join(texts)

    def _examples(self, count: int) -> list[str]:
        """The first inputs of the validation data, as far as it is there."""
        if not count:
            return []
        try:
            report = LineReport(LineRules("skip", self.task.recipe.data.max_chars))
            found = list(islice(self.task.corpus("valid").examples(report), count))
            return [self.example(self.task.inputs_of(example)) for example in found]
        except (DepthwiseError, OSError):
            return []
