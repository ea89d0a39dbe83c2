"""How layers were used while a run was trained, as it wrote that down: ``layers.jsonl`` and ``metrics.jsonl``."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from depthwise.errors import DataError

UNDECIDED = (0.1, 0.9)
"""Between these a gate has not decided."""
_NORM = re.compile(r"gradient_norm/((?:encoder|decoder))\.(\d+)")


@dataclass(frozen=True)
class Record:
    """What a run wrote down. Arrays have a row for each line of its log, a column for each layer."""

    name: str
    updates: list[int] = field(default_factory=list)
    probabilities: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    """By side and language."""
    samples: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    gradients: dict[str, tuple[list[int], np.ndarray]] = field(default_factory=dict)
    """Updates and norms, by side."""
    curves: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)
    """Updates and values of every metric of the log."""


def read_record(run: Path) -> Record:
    """The record of a run, with gates or without."""
    metrics, layers = _metrics(run / "metrics.jsonl"), _gates(run / "layers.jsonl")
    sides = [name for name in layers[0] if name != "update"] if layers else []

    def stacked(what: str) -> dict[str, dict[str, np.ndarray]]:
        return {
            side: {name: np.array([line[side][name][what] for line in layers], float) for name in layers[0][side]}
            for side in sides
        }

    names = dict.fromkeys(name for line in metrics for name in line if name not in ("update", "epoch"))
    curves = {name: _curve(metrics, name) for name in names}
    return Record(
        name=run.absolute().name,
        updates=[line["update"] for line in layers],
        probabilities=stacked("probabilities"),
        samples=stacked("samples"),
        gradients=_gradients(metrics),
        curves={name: curve for name, curve in curves.items() if curve[0]},
    )


def in_use(record: Record, side: str) -> str:
    """How many layers of a gated side are likely used at the end of the log, and how many gates are undecided."""
    last = np.array([rows[-1] for rows in record.probabilities[side].values()])
    if not np.isfinite(last).all():
        return f"{record.name}, {side}, update {record.updates[-1]:,}: probabilities are no numbers"
    num_open = (last > 0.5).sum(1).mean()
    num_undecided = ((last > UNDECIDED[0]) & (last < UNDECIDED[1])).sum(1).mean()
    languages = f", in the mean over {len(last)} languages" if len(last) > 1 else ""
    return (
        f"{record.name}, {side}, update {record.updates[-1]:,}: {num_open:g} of {last.shape[1]} layers above 0.5, "
        f"{num_undecided:g} between {UNDECIDED[0]} and {UNDECIDED[1]}{languages}"
    )


def _metrics(path: Path) -> list[dict[str, Any]]:
    """Lines of the log, of which there is at least one; those that were no number are null."""
    lines = _lines(path)
    if not lines:
        raise DataError(f"{path} is missing or empty; name the folder of a run that was trained")
    for number, line in enumerate(lines, start=1):
        for name, value in line.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise _damaged(path, number, f"{name} is no number")
    return lines


def _gates(path: Path) -> list[dict[str, Any]]:
    """Lines of the log of gates, all of the same sides, languages and layers; none where a run has no gates."""
    lines = _lines(path)
    forms = [_form(line) for line in lines]
    for number, form in enumerate(forms, start=1):
        if form is None:
            raise _damaged(path, number, "there are no probabilities and samples of layers by side and language")
        if form != forms[0]:
            raise _damaged(path, number, "its sides, languages or layers are not those of the first line")
    return lines


def _form(line: Mapping[str, Any]) -> dict[str, tuple[set[str], int]] | None:
    """Languages and the number of layers of each side in a line of gates; none where it holds something else."""
    form = {}
    for side, gates in line.items():
        if side == "update":
            continue
        try:
            values = np.array([[of["probabilities"], of["samples"]] for of in gates.values()], float)
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
            return None
        if values.ndim != 3 or not values.size:
            return None
        form[side] = (set(gates), values.shape[2])
    return form


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, each of which has its update."""
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}; it is no log of a run") from None
    lines = []
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
        except ValueError:
            raise _damaged(path, number, "the line is no JSON, or only a part of it") from None
        if not isinstance(line, dict) or type(line.get("update")) is not int:
            raise _damaged(path, number, "the line says nothing of its update")
        lines.append(line)
    return lines


def _damaged(path: Path, number: int, what: str) -> DataError:
    return DataError(f"{path}:{number}: {what}; remove the line, or name another run")


def _curve(metrics: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    found = [(line["update"], line[name]) for line in metrics if line.get(name) is not None]
    return [update for update, _ in found], [value for _, value in found]


def _gradients(metrics: Sequence[Mapping[str, Any]]) -> dict[str, tuple[list[int], np.ndarray]]:
    """Norms of the gradients of all layers of each side, where they were logged; not a number where there was none."""
    found: dict[str, dict[int, dict[int, float]]] = {}
    for line in metrics:
        for name, value in line.items():
            if match := _NORM.fullmatch(name):
                of_line = found.setdefault(match[1], {}).setdefault(line["update"], {})
                of_line[int(match[2])] = np.nan if value is None else value
    gradients = {}
    for side, by_update in found.items():
        num_layers = 1 + max(max(norms) for norms in by_update.values())
        rows = [[norms.get(layer, np.nan) for layer in range(num_layers)] for norms in by_update.values()]
        gradients[side] = (list(by_update), np.array(rows))
    return gradients
