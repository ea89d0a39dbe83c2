"""The frontiers of all groups as a chart and a table want them: lines of points, the special ones marked."""

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from depthwise.evaluation import CalibratedSetting, in_words, setting_of
from depthwise.report.grouping import Group, merged_points
from depthwise.report.reading import RunFiles, full_point, is_separate

WAYS = ("measure", "decision")
"""Options of a policy that part its points into lines of their own."""
USUAL_MEASURE = "max_probability"


def frontiers_of(groups: Sequence[Group], numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """One for each group and each kind of sweep that its runs had; ``numbers`` are those of runs, by name."""
    found = []
    for place, group in enumerate(groups):
        kinds: dict[tuple[Any, ...], list[tuple[RunFiles, dict[str, Any]]]] = {}
        for run in group.runs:
            for file, frontier in run.frontiers.items():
                what = tuple(frontier[name] for name in ("task", "split", "metric", "num_layers"))
                kinds.setdefault((file, *what), []).append((run, frontier))
        for (file, *_), of in kinds.items():
            found.append(_frontier(place, group, file, of, numbers))
    return found


def _frontier(
    place: int, group: Group, file: str, of: Sequence[tuple[RunFiles, dict[str, Any]]], numbers: Mapping[str, int]
) -> dict[str, Any]:
    first = of[0][1]
    points = merged_points([(numbers[run.name], frontier) for run, frontier in of])
    for point in points:
        point["line"] = line_of(point)
        point["name"] = name_of(point)
    _mark(points, first)
    calibrated = _calibrated(points, of) if len(group.runs) == 1 else []
    several = len({name for name, _ in ((f, r) for r in group.runs for f in r.frontiers)}) > 1
    return {
        "group": place,
        "name": f"{group.name}, {file}" if several else group.name,
        "runs": [numbers[run.name] for run, _ in of],
        **{name: first[name] for name in ("task", "split", "metric", "higher_is_better", "num_layers", "examples")},
        "depth_of": first.get("depth_of"),
        "hardware": first.get("hardware"),
        "batch_rows": first.get("batch_rows"),
        "examples_digest": str(first.get("examples_digest"))[:12],
        "points": points + calibrated,
    }


def line_of(point: Mapping[str, Any]) -> str:
    """What a point is joined with: the policy, and how it measures or decides."""
    ways = [str(point["setting"][name]) for name in WAYS if name in point["setting"]]
    ways = [way for way in ways if way != USUAL_MEASURE]
    return " ".join([point["policy"], *ways])


def name_of(point: Mapping[str, Any]) -> str:
    """A point in a few words: ``confidence margin 0.7``."""
    if point["policy"] == "fixed":
        return f"fixed depth {point['setting'].get('depth')}"
    if is_separate(point):
        folder = PurePath(str(point["setting"].get("run"))).name
        return f"{folder}, trained by itself with {point['setting'].get('depth')} blocks"
    values = [value for value in point["setting"].values() if value != USUAL_MEASURE]
    flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return " ".join([point["policy"], *(f"{value:g}" if isinstance(value, float) else str(value) for value in flat)])


def _mark(points: Sequence[dict[str, Any]], frontier: Mapping[str, Any]) -> None:
    """Which point is the full model, and which is the cheapest that is as good."""
    full = full_point(frontier)
    for point in points:
        if full is not None and (point["policy"], point["setting"]) == (full["policy"], full["setting"]):
            point["full"] = True
    cheapest = cheapest_of(points, higher_is_better=frontier["higher_is_better"])
    if cheapest is not None:
        cheapest["cheapest"] = True


def cheapest_of(points: Sequence[dict[str, Any]], *, higher_is_better: bool) -> dict[str, Any] | None:
    """Of the points below full depth that are at least as good as the full model, the one of fewest operations.

    Deciding costs operations too, so that the one of least depth need not be the cheapest.
    """
    full = next((point for point in points if point.get("full")), None)
    if full is None or full["quality"] is None or full["depth"] is None:
        return None
    sign = 1 if higher_is_better else -1
    found = [
        point
        for point in points
        if not is_separate(point) and point["quality"] is not None and point["depth"] is not None
        if sign * (point["quality"] - full["quality"]) >= 0 and point["depth"] < full["depth"]
    ]
    return min(found, key=lambda point: (_or_infinity(point["flops"]), point["depth"]), default=None)


def _or_infinity(value: float | None) -> float:
    return math.inf if value is None else value


def _calibrated(
    points: Sequence[dict[str, Any]], of: Sequence[tuple[RunFiles, Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """Calibrated settings: marked where they were swept too, else as points of their own, without a time."""
    run, frontier = of[0]
    more = []
    for name, setting in run.settings.items():
        if setting.weights_digest != frontier.get("weights_digest") or setting.metric != frontier["metric"]:
            continue
        options = setting.options
        told = setting_of(options)
        mark = {"name": name, "met": setting.budget_met, "goal": goal_in_words(setting)}
        same = [point for point in points if (point["policy"], point["setting"]) == (options.kind, told)]
        if same:
            same[0].setdefault("calibrated", []).append(mark)
        elif setting.examples_digest == frontier.get("examples_digest"):
            point: dict[str, Any] = {"policy": options.kind, "setting": told}
            examples = max(1, setting.examples)
            numbers = {"quality": setting.quality, "depth": setting.mean_depth, "flops": setting.flops / examples}
            more.append(
                {
                    **point,
                    **numbers,
                    "seconds": None,
                    "line": "calibrated",
                    "name": f"{name}: {name_of(point)}",
                    "calibrated": [mark],
                }
            )
    return more


def goal_in_words(setting: CalibratedSetting) -> str:
    """What was asked of a calibration."""
    goal, said = setting.goal, []
    if "quality_drop" in goal:
        surely = "surely " * bool(goal.get("sure"))
        against = f" against {goal['beside']}" if "beside" in goal else ""
        said.append(f"{surely}lose at most {goal['quality_drop']:g} {setting.metric}{against}")
    if "depth_budget" in goal:
        said.append(f"at most {goal['depth_budget']:g} blocks in the mean")
    if "risk" in goal:
        said.append(f"a risk of at most {goal['risk']:g} but for a chance of {goal.get('confidence', 0):g}")
    return ", ".join(said) or "nothing"


def settings_of(run: RunFiles) -> list[dict[str, Any]]:
    """All calibrated settings of a run, whether or not they fit its frontier, as rows of a table."""
    rows = []
    for name, setting in run.settings.items():
        options = setting.options
        rows.append(
            {
                "name": name,
                "policy": ", ".join(text for text in (options.kind, in_words(setting_of(options))) if text),
                "goal": goal_in_words(setting),
                "met": setting.budget_met,
                "metric": setting.metric,
                "quality": setting.quality,
                "full_quality": setting.full_quality,
                "depth": setting.mean_depth,
                "full_depth": setting.full_depth,
                "flops_share": setting.flops / max(1, setting.full_flops),
                "split": setting.split,
                "examples": setting.examples,
            }
        )
    return rows
