"""How fast updates follow each other once training is under way."""

import time
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Pace(TrainerCallback):
    """Updates and items per second between lines of the log.

    Writing a line waits for the device, so that the time between two of them is that of the updates there. What lies
    before the first line, where kernels are compiled and passes recorded, does not count, and neither does a stretch
    with a validation or a checkpoint in it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.num_updates = 0
        self.num_items = 0
        self._began: float | None = None
        self._first = 0

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs or "num_items" not in logs:  # of a validation
            return
        now = time.monotonic()
        if self._began is not None:
            self.seconds += now - self._began
            self.num_updates += state.global_step - self._first
            self.num_items += int(logs["num_items"])
        self._began, self._first = now, state.global_step

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._began = None

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._began = None

    @property
    def updates_per_second(self) -> float | None:
        """None where no stretch was measured."""
        return self.num_updates / self.seconds if self.seconds > 0 else None

    @property
    def items_per_second(self) -> float | None:
        return self.num_items / self.seconds if self.seconds > 0 else None
