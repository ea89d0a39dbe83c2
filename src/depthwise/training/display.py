"""What a person sees of a training: a live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

SECONDS_BETWEEN_LINES = 10.0
"""How often a plain line is written where there is no terminal."""


class Display(TrainerCallback):
    """Loss, speed and time left. It reads only what is on the host already: the loss is that of the last log."""

    def __init__(self, num_items_done: Callable[[], int], item: str) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.num_items_done, self.item = num_items_done, item
        self.words = ""
        self._live: Progress | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._began, self._first = time.monotonic(), state.global_step
        self._last_line = self._began
        if self.console.is_terminal and state.is_world_process_zero:
            columns = (TextColumn("training"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[words]}"))
            self._live = Progress(*columns, console=self.console, transient=True)
            self._live.start()
            self._bar = self._live.add_task("", total=state.max_steps, completed=state.global_step, words="")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._live is not None:
            self._live.update(self._bar, completed=state.global_step, words=self._words(state))
        elif state.is_world_process_zero and time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self.console.print(f"update {state.global_step:,} of {state.max_steps:,}  {self._words(state)}")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs and "loss" in logs:
            self.words = f"loss {logs['loss']:.3f}  "

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if metrics and state.is_world_process_zero:
            found = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            self.console.print(f"epoch {state.epoch or 0:.2f}  update {state.global_step:,}  validation: {found}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the live line away, also after an error."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _words(self, state: TrainerState) -> str:
        passed = max(time.monotonic() - self._began, 1e-6)
        done = state.global_step - self._first
        left = passed / max(done, 1) * (state.max_steps - state.global_step)
        speed = self.num_items_done() / passed
        return f"{self.words}{speed:,.0f} {self.item}/s  {clock(left)} left"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, as far as there are any."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
