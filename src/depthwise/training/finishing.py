"""The end of a training: the chosen checkpoints become the model of the run."""

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from depthwise.errors import CheckpointError
from depthwise.evaluation.results import replace_file
from depthwise.shapes import Tensor
from depthwise.tasks import Task
from depthwise.training.averaging import average_weights
from depthwise.training.beginning import SUMMARY
from depthwise.training.checkpoints import checkpoints, clear_away, damage, newest_whole, update_of

RATES = ("updates_per_second", "items_per_second")
"""What summaries of earlier versions lack."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trained:
    """How a training ended. ``interrupted`` is the number of the signal that stopped it, if one did.

    Rates are those of ``Pace``, in the process that ended the training.
    """

    folder: Path
    num_updates: int
    seconds: float
    best: float | None
    metric: str
    num_parameters: int
    hardware: str
    updates_per_second: float | None = None
    items_per_second: float | None = None
    interrupted: int | None = None
    was_finished: bool = False


def finished(folder: Path, num_updates: int, chosen: Sequence[int]) -> Trained | None:
    """How the training of a run ended, if it ended at this update with the model made up of these checkpoints."""
    try:
        summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # a summary that is damaged is written anew
        return None
    if summary["num_updates"] != num_updates or summary["chosen"] != sorted(chosen):
        return None
    names = ("num_updates", "seconds", "best", "metric", "num_parameters", "hardware", *RATES)
    return Trained(folder, **{name: summary[name] for name in names if name in summary}, was_finished=True)


def write_model(task: Task, result: Trained, chosen: Sequence[int]) -> None:
    """The mean of the chosen checkpoints as the model of the run; ``training.json`` comes last."""
    folder = result.folder
    whole = _whole(folder, chosen)
    model = task.model_class(task.model_config())
    _load(model, average_weights(whole), whole[-1])
    workshop = folder / ".model.partial"
    try:
        model.save_pretrained(workshop)
        for path in sorted(workshop.iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(folder / path.name)
        summary = {
            "num_updates": result.num_updates,
            "seconds": result.seconds,
            "metric": result.metric,
            "best": result.best,
            "num_parameters": result.num_parameters,
            "hardware": result.hardware,
            **{name: getattr(result, name) for name in RATES},
            "chosen": sorted(chosen),
            "averaged": [update_of(path) for path in whole],
        }
        replace_file(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} cannot be written: {error}; make room and give the same command again"
        ) from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    clear_away(folder, needed=chosen, num_to_go_on=1)


def _whole(folder: Path, chosen: Sequence[int]) -> list[Path]:
    """The chosen checkpoints as far as they are there and whole; the newest where none is."""
    found = [path for path in checkpoints(folder) if update_of(path) in chosen]
    whole = [path for path in found if damage(path) is None]
    if len(whole) < len(chosen):
        log.warning("of %s checkpoints to be averaged %s are there and whole", len(chosen), len(whole))
    if not whole and (newest := newest_whole(folder)) is not None:
        whole = [newest]
    if not whole:
        raise CheckpointError(f"{folder} holds no checkpoint that could become the model; train it again")
    return whole


def _load(model: nn.Module, weights: dict[str, Tensor], origin: Path) -> None:
    """Every weight must be there, by itself or tied to another."""
    missing = model.load_state_dict(weights, strict=False).missing_keys
    tensors = model.state_dict()
    known = {tensors[name].data_ptr() for name in weights if name in tensors}
    lost = [name for name in missing if tensors[name].data_ptr() not in known]
    if lost:
        raise CheckpointError(f"{origin} has no {lost[0]}, without which there is no model; train it again")
