"""What was logged in training: learning curves with the seeds of a recipe as one, gates and gradients of layers."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from depthwise.report.checks import is_number
from depthwise.report.grouping import Group, Summary
from depthwise.report.reading import RunFiles

MOST_UPDATES = 150
"""Points of a curve; of longer ones every second, third, ... is shown, and always the last."""
MOST_CELLS = 12_000
"""Cells of all heat maps of a run."""
VALID = "valid_"
GRADIENTS = "gradient_norm/"
NOT_CURVES = ("update", "epoch", "num_items")
_LAYER = re.compile(r"(encoder|decoder)\.(\d+)")


def thinned(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of a sequence, evenly, the last one included."""
    if len(items) <= most:
        return list(items)
    step = math.ceil(len(items) / most)
    return list(items[::-1][::step][::-1])


def curves_of(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Every number of the logs over updates: ``{group, name, valid, points: [[update, mean, deviation], ...]}``."""
    found = []
    for place, group in enumerate(groups):
        names = dict.fromkeys(name for run in group.runs for line in run.metrics for name in line)
        for name in names:
            if name in NOT_CURVES or name.startswith(GRADIENTS):
                continue
            points = _mean_curve(group.runs, name)
            if points:
                found.append(
                    {
                        "group": place,
                        "name": name.removeprefix(VALID),
                        "valid": name.startswith(VALID),
                        "points": points,
                    }
                )
    return found


def _mean_curve(runs: Sequence[RunFiles], name: str) -> list[list[float | None]]:
    """Updates that all runs with this number have logged; no band where there is one run."""
    by_run = [
        {line["update"]: line[name] for line in run.metrics if is_number(line.get(name)) and math.isfinite(line[name])}
        for run in runs
    ]
    by_run = [of for of in by_run if of]
    if not by_run:
        return []
    updates = sorted(set.intersection(*(set(of) for of in by_run))) or sorted(by_run[0])
    points: list[list[float | None]] = []
    for update in thinned(updates, MOST_UPDATES):
        summary = Summary.of([of[update] for of in by_run if update in of])
        point: list[float | None] = [update, _short(summary.mean)]
        points.append(point if summary.deviation is None else [*point, _short(summary.deviation)])
    return points


def heat_maps_of(runs: Sequence[RunFiles]) -> list[dict[str, Any]]:
    """Gates of latent layers, norms of gradients and samples, each as layers against updates, where they were logged.

    ``{run, kind, side, language, updates, rows}``: a row for each layer, from the first.
    """
    found = []
    for number, run in enumerate(runs):
        maps = [*_gates(run, "gates", "probabilities"), *_gradients(run), *_gates(run, "samples", "samples")]
        cells = max(1, sum(len(of["rows"]) for of in maps))
        most = max(2, min(MOST_UPDATES, MOST_CELLS // cells))
        for of in maps:
            kept = thinned(range(len(of["updates"])), most)
            rows = [[_short(row[i]) for i in kept] for row in of["rows"]]
            found.append({**of, "run": number, "updates": [of["updates"][i] for i in kept], "rows": rows})
    return found


def _gates(run: RunFiles, kind: str, logged: str) -> list[dict[str, Any]]:
    """What was logged of gates, of each side and language: chances that they are open, or the last samples."""
    found: dict[tuple[str, str], tuple[list[int], list[list[float]]]] = {}
    for line in run.layers:
        for side, languages in line.items():
            if not isinstance(languages, Mapping):
                continue
            for language, of in languages.items():
                values = of.get(logged) if isinstance(of, Mapping) else None
                if not isinstance(values, list) or not values or not all(map(is_number, values)):
                    continue
                updates, columns = found.setdefault((side, str(language)), ([], []))
                if not columns or len(columns[0]) == len(values):
                    updates.append(line["update"])
                    columns.append(values)
    return [
        {"kind": kind, "side": side, "language": language, "updates": updates, "rows": _turned(columns)}
        for (side, language), (updates, columns) in found.items()
    ]


def _gradients(run: RunFiles) -> list[dict[str, Any]]:
    """Norms of the gradients of every layer, where ``training.gradient_norms`` had them logged."""
    found: dict[str, dict[int, dict[int, float]]] = {}
    for line in run.metrics:
        for name, value in line.items():
            match = _LAYER.fullmatch(name.removeprefix(GRADIENTS)) if name.startswith(GRADIENTS) else None
            if match is not None and is_number(value):
                found.setdefault(match[1], {}).setdefault(line["update"], {})[int(match[2])] = value
    maps = []
    for side, by_update in found.items():
        num_layers = 1 + max(layer for norms in by_update.values() for layer in norms)
        updates = sorted(by_update)
        rows = [[by_update[update].get(layer) for update in updates] for layer in range(num_layers)]
        maps.append({"kind": "gradients", "side": side, "language": "", "updates": updates, "rows": rows})
    return maps


def _turned(columns: Sequence[Sequence[float]]) -> list[list[float]]:
    return [list(row) for row in zip(*columns, strict=True)]


def _short(value: float | None) -> float | None:
    """Four digits are enough for an eye."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
