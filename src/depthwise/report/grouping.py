"""Runs of one recipe that differ in their seeds, taken together: every number as a mean, with its deviation.

The deviation is that of a sample, the square root of sum (x - mean)^2 / (n - 1); of one run there is none.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from depthwise.report.reading import RunFiles

NOT_OF_RECIPE = ("seed",)
NOT_OF_DATA = ("cache",)


@dataclass(frozen=True)
class Group:
    """Runs of one recipe, often a single one."""

    name: str
    runs: tuple[RunFiles, ...]

    @property
    def first(self) -> RunFiles:
        return self.runs[0]


@dataclass(frozen=True)
class Summary:
    """Mean of some numbers; their deviation where there are several."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def grouped(runs: Iterable[RunFiles]) -> list[Group]:
    """Groups in the order of their first runs. A run without a recipe is one by itself."""
    found: dict[str, list[RunFiles]] = {}
    for place, run in enumerate(runs):
        found.setdefault(_key(run, place), []).append(run)
    return [Group(_name(of), tuple(of)) for of in found.values()]


def _key(run: RunFiles, place: int) -> str:
    if not run.recipe:
        return f"without a recipe {place}"
    recipe = {name: value for name, value in run.recipe.items() if name not in NOT_OF_RECIPE}
    data = recipe.get("data")
    if isinstance(data, Mapping):
        recipe["data"] = {name: value for name, value in data.items() if name not in NOT_OF_DATA}
    return json.dumps(recipe, sort_keys=True, default=str)


def _name(runs: Sequence[RunFiles]) -> str:
    if len(runs) == 1:
        return runs[0].name
    letters = zip(*(run.name for run in runs), strict=False)
    same = "".join(each for each, *_ in takewhile(lambda of: len(set(of)) == 1, letters)).rstrip("-_./ 0123456789")
    same = same.removesuffix("seed").rstrip("-_./ ")
    return f"{same or runs[0].name} ({len(runs)} seeds)"


def merged_points(frontiers: Sequence[tuple[int, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The points of several runs, given with their numbers: one for each policy and setting, in the first one's order.

    Costs are those of one example, so that sweeps of different sizes can stand on one chart.
    """
    found: dict[str, list[tuple[int, Mapping[str, Any], int]]] = {}
    for number, frontier in frontiers:
        for point in frontier["points"]:
            key = json.dumps([point["policy"], point["setting"]], sort_keys=True, default=str)
            found.setdefault(key, []).append((number, point, max(1, frontier["examples"])))
    return [_merged(of) for of in found.values()]


def _merged(points: Sequence[tuple[int, Mapping[str, Any], int]]) -> dict[str, Any]:
    _, first, _ = points[0]
    columns = {
        "quality": [point.get("quality") for _, point, _ in points],
        "depth": [point.get("mean_depth") for _, point, _ in points],
        "flops": [_per(point.get("flops"), examples) for _, point, examples in points],
        "seconds": [_per(point.get("seconds"), examples) for _, point, examples in points],
    }
    merged: dict[str, Any] = {"policy": str(first["policy"]), "setting": dict(first["setting"])}
    for name, values in columns.items():
        there = [value for value in values if value is not None]
        summary = Summary.of(there) if len(there) == len(values) else None
        merged[name] = None if summary is None else summary.mean
        if summary is not None and summary.deviation is not None:
            merged[f"{name}_deviation"] = summary.deviation
    if len(points) > 1:
        numbers = [number for number, _, _ in points]
        merged["each"] = [list(row) for row in zip(numbers, *columns.values(), strict=True)]
    return merged


def _per(value: float | None, examples: int) -> float | None:
    return None if value is None else value / examples
