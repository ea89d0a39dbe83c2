"""What a run saves and what that costs, in words: the first thing on a page.

A setting is chosen on the data of the sweep: the one of fewest operations that is as good as the full model; else the
calibrated one of least depth that met its goal; else, of those that save anything, the one that loses least. Where it
and the full model were evaluated on other data too, that is told beside it, since the choice was not made there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from depthwise.config import parse_policy
from depthwise.errors import ConfigError
from depthwise.evaluation import setting_of
from depthwise.report.checks import is_number
from depthwise.report.frontiers import cheapest_of
from depthwise.report.grouping import Group
from depthwise.report.reading import is_separate

SPLITS = {"valid": "validation", "test": "test", "train": "training"}
ABOUT = {"depth": "depth", "flops": "operations", "seconds": "time"}
IN_POINTS = (
    "bleu",
    "rouge",
    "chrf",
    "accuracy",
    "f1",
    "match",
    "matthews",
    "pearson",
    "spearman",
    "precision",
    "recall",
)

Told = dict[str, Any]


def headline(group: Group, frontiers: Sequence[Mapping[str, Any]]) -> Told:
    """A title, sentences, and the numbers of the tiles beside them, of one group of runs."""
    for frontier in frontiers:
        found = _of_frontier(group, frontier)
        if found is not None:
            return {"name": group.name, **found}
    return {"name": group.name, **(_of_gates(group) or _of_evaluations(group) or _nothing(group))}


def chosen_point(frontier: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The setting that is told of."""
    points, higher = frontier["points"], frontier["higher_is_better"]
    full = next((point for point in points if point.get("full")), None)
    if full is None or full["quality"] is None or not full["depth"]:
        return None
    cheapest = cheapest_of(points, higher_is_better=higher)
    if cheapest is not None:
        return cheapest
    saving = [
        point
        for point in points
        if not is_separate(point) and point["quality"] is not None and point["depth"] is not None
        if point["depth"] < full["depth"]
    ]
    met = [point for point in saving if any(mark["met"] for mark in point.get("calibrated", ()))]
    if met:
        return min(met, key=lambda point: point["depth"])
    early = [point for point in saving if point["policy"] != "fixed"] or saving
    return max(early, key=lambda point: (1 if higher else -1) * point["quality"], default=None)


def _of_frontier(group: Group, frontier: Mapping[str, Any]) -> Told | None:
    chosen = chosen_point(frontier)
    if chosen is None:
        return None
    full = next(point for point in frontier["points"] if point.get("full"))
    metric = frontier["metric"].replace("_", " ")
    shares = {name: 1 - chosen[name] / full[name] for name in ABOUT if chosen.get(name) and full.get(name)}
    loss = _loss(full["quality"], chosen["quality"], higher_is_better=frontier["higher_is_better"])
    ours, theirs = _number(chosen["quality"]), _number(full["quality"])
    sentences = [
        f"{_saves(shares)}, and {_costs(loss, metric)}: {metric} is {ours}, that of the full model {theirs}.",
        f"That is with {chosen['name']}, by which a token runs {chosen['depth']:.2f} of {frontier['num_layers']} "
        f"{_side(frontier)}blocks in the mean.",
    ]
    others = _elsewhere(group, frontier, chosen)
    where = f"{frontier['examples']:,} {SPLITS.get(frontier['split'], frontier['split'])} inputs"
    runs = f", mean of {len(frontier['runs'])} seeds" if len(frontier["runs"]) > 1 else ""
    rows = frontier["batch_rows"]
    at_once = ", one at a time" if rows == 1 else f", {rows} at a time" if isinstance(rows, int) else ""
    measured = f"Measured on {where}{at_once}{runs}, on {frontier['hardware']}."
    tiles = [
        {"value": _percent(share), "label": f"{_less(name, share)} {ABOUT[name]}", "good": share >= 0}
        for name, share in shares.items()
    ]
    shown = "±0" if abs(loss) < 0.005 else _number(-loss, sign=True)
    tiles.append({"value": shown, "label": f"{metric} against the full model", "good": loss < 0.005})
    return {
        "setting": chosen["name"],
        "sentences": [*sentences, *others],
        "measured": measured,
        "tiles": tiles,
        "kind": "frontier",
    }


def _loss(full: float, chosen: float, *, higher_is_better: bool) -> float:
    """By how much the setting is worse than the full model; below zero where it is better."""
    return full - chosen if higher_is_better else chosen - full


def _saves(shares: Mapping[str, float]) -> str:
    """``Saves 70 % of the depth and 36 % of the operations, takes 5 % more time``."""
    saved = [f"{_percent(share)} of the {ABOUT[name]}" for name, share in shares.items() if share >= 0.005]
    more = [f"{_percent(share)} more {ABOUT[name]}" for name, share in shares.items() if share <= -0.005]
    parts = [f"saves {listed(saved)}"] if saved else ["saves nothing"]
    return ", ".join([*parts, *([f"takes {listed(more)}"] if more else [])]).capitalize()


def _costs(loss: float, metric: str) -> str:
    unit = " points" if any(part in metric for part in IN_POINTS) else ""
    if abs(loss) < 0.005:
        return "costs nothing"
    return f"costs {_number(loss)}{unit}" if loss > 0 else f"gains {_number(-loss)}{unit}"


def listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _less(name: str, share: float) -> str:
    return "more" if share < 0 else "fewer" if name == "flops" else "less"


def _percent(share: float) -> str:
    return f"{100 * abs(share):.0f}\N{NO-BREAK SPACE}%"


def _number(value: float, *, sign: bool = False) -> str:
    return f"{value:+.2f}".replace("-", "−") if sign else f"{value:.2f}"


def _elsewhere(group: Group, frontier: Mapping[str, Any], chosen: Mapping[str, Any]) -> list[str]:
    """The same setting beside the full model on other data, where a run has both evaluations."""
    if len(group.runs) > 1:
        return []
    found, metric = group.first.evaluations, frontier["metric"]
    for name, early in found.items():
        policy = _policy(early)
        if policy is None or policy != (chosen["policy"], chosen["setting"]) or early["split"] == frontier["split"]:
            continue
        for other, full in found.items():
            same = all(early.get(key) == full.get(key) for key in ("split", "examples_digest", "weights_digest"))
            if other == name or not same or not _is_full(full):
                continue
            values = early["metrics"].get(metric), full["metrics"].get(metric)
            if None in values or early.get("mean_depth") is None:
                continue
            split = SPLITS.get(early["split"], early["split"])
            return [
                f"On {early['examples']:,} {split} inputs, which had no part in the choice, it has "
                f"{_number(values[0])} instead of {_number(values[1])} at a mean {_side(early)}depth of "
                f"{early['mean_depth']:.2f}."
            ]
    return []


def _side(measured: Mapping[str, Any]) -> str:
    """``encoder`` and a space, where the depth is that of sources which an encoder below a decoder reads."""
    return f"{measured['depth_of']} " if measured.get("depth_of") else ""


def _policy(evaluation: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Kind and deciding options of the policy that an evaluation was made by."""
    given = (evaluation.get("settings") or {}).get("policy")
    if not given:
        return None
    try:
        options = parse_policy(given)
    except ConfigError:
        return None
    return options.kind, setting_of(options)


def _is_full(evaluation: Mapping[str, Any]) -> bool:
    settings = evaluation.get("settings") or {}
    return settings.get("policy") is None and settings.get("depth") is None


# Runs without a frontier


def _of_gates(group: Group) -> Told | None:
    """Of latent layers, how many are open at the end: those with a probability above one half, which pruning keeps."""
    for line in reversed(group.first.metrics):
        prefix = "effective_depth/"
        sides = {name.removeprefix(prefix): value for name, value in line.items() if name.startswith(prefix)}
        if not sides or not all(map(is_number, sides.values())):
            continue
        sizes = {side: group.first.layers_of(side) for side in sides}
        told = [
            f"{value:.1f}{f' of {sizes[side]}' if sizes[side] else ''} in the {side}" for side, value in sides.items()
        ]
        sentence = (
            f"Of its latent layers, {' and '.join(told)} were in the mean more likely open than not after update "
            f"{line['update']:,}."
        )
        tiles = [
            {"value": f"{value:.1f}", "label": f"of {sizes[side] or '?'} layers open, {side}", "good": True}
            for side, value in sides.items()
        ]
        return {"sentences": [sentence], "measured": "", "tiles": tiles, "kind": "gates"}
    return None


def _of_evaluations(group: Group) -> Told | None:
    run = group.first
    if not run.evaluations:
        return None
    name = next((name for name in ("test", "valid") if name in run.evaluations), next(iter(run.evaluations)))
    found = run.evaluations[name]
    value, depth = found["metrics"].get(found["metric"]), found.get("mean_depth")
    quality = "not finite" if value is None else _number(value)
    side = _side(found)
    layers = run.layers_of(found["depth_of"]) if side else run.num_layers
    of = f" of {layers}" if layers else ""
    at = "" if depth is None else f" at a mean {side}depth of {depth:.2f}{of} blocks"
    split = SPLITS.get(found["split"], found["split"])
    sentence = f"{found['metric']} is {quality}{at}, on {found.get('examples', 0):,} {split} inputs."
    tiles = [{"value": quality, "label": found["metric"], "good": True}]
    if depth is not None:
        tiles.append({"value": f"{depth:.2f}", "label": f"mean {side}depth{of}", "good": True})
    return {
        "sentences": [sentence, "What depth saves is not known before a sweep has measured it."],
        "measured": f"Measured on {found.get('hardware')}.",
        "tiles": tiles,
        "kind": "evaluation",
    }


def _nothing(group: Group) -> Told:
    return {
        "sentences": ["Nothing has been measured here yet, so that nothing can be said of what depth saves."],
        "measured": "",
        "tiles": [],
        "kind": "nothing",
    }
