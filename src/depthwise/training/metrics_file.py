"""``metrics.jsonl``: one line per log and per validation, in the order of updates, and nothing that depends on time.

What a run writes there after an interruption is therefore what it would have written without one.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from depthwise.errors import TrainingError
from depthwise.evaluation.results import replace_file


class MetricsFile:
    """Appends lines; numbers that JSON cannot write are null."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, num_updates: int) -> None:
        """Keep the lines up to an update, from which a run goes on, and drop what an interruption left behind them."""
        kept = []
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
                try:
                    is_kept = line.endswith("\n") and json.loads(line)["update"] <= num_updates
                except (ValueError, KeyError, TypeError):
                    is_kept = False
                if not is_kept:
                    break
                kept.append(line)
        replace_file(self.path, "".join(kept))

    def add(self, values: Mapping[str, Any]) -> None:
        line = json.dumps({name: _plain(value) for name, value in values.items()}, allow_nan=False)
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise TrainingError(
                f"{self.path} cannot be written: {error.strerror}; make room, and the same command goes on from the "
                "last checkpoint"
            ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
