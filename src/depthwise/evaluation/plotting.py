"""The frontier as a picture: quality against mean depth, the fixed depths as a curve, every policy as a line."""

import io
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

SIZE, DOTS_PER_INCH = (8.0, 5.0), 150
MARKERS = "svDP^<>Xph"


def frontier_png(frontier: Mapping[str, Any]) -> bytes:
    """The content of ``frontier.json`` as a PNG."""
    buffer = io.BytesIO()
    frontier_figure(frontier).savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()


def frontier_figure(frontier: Mapping[str, Any]) -> Figure:
    """Points without a finite quality have no place in it."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    lines = _lines(frontier)
    for number, (name, points) in enumerate(lines.items()):
        depths, values = zip(*sorted(points), strict=True)
        if name == "fixed":
            axes.plot(depths, values, "o-", color="black", linewidth=2, label="fixed depth", zorder=3)
        elif name == "separate":
            axes.plot(depths, values, "o:", color="grey", label="trained separately")
        else:
            axes.plot(depths, values, f"{MARKERS[number % len(MARKERS)]}-", markersize=5, linewidth=1.2, label=name)
    for depth, value in _full(frontier):
        axes.plot([depth], [value], "*", color="crimson", markersize=16, label="full model", zorder=4)
        axes.axhline(value, color="crimson", linewidth=0.8, linestyle="--", zorder=1)
    better = "higher" if frontier["higher_is_better"] else "lower"
    side = f"{frontier['depth_of']} " if frontier.get("depth_of") else ""
    axes.set_xlabel(f"mean {side}depth (blocks per token, of {frontier['num_layers']})")
    axes.set_ylabel(f"{frontier['metric']} ({better} is better)")
    axes.set_title(f"{frontier['task']}, {frontier['split']}: {frontier['examples']:,} examples")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if lines:
        axes.legend(fontsize="small")
    return figure


def _full(frontier: Mapping[str, Any]) -> list[tuple[float, float]]:
    fixed = [point for point in frontier["points"] if point["policy"] == "fixed" and point["quality"] is not None]
    whole = [point for point in fixed if point["setting"]["depth"] == frontier["num_layers"]]
    return [(point["mean_depth"], point["quality"]) for point in whole]


def _lines(frontier: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Mean depth and quality of the points of each policy, apart for every way in which it measures or decides."""
    found: dict[str, list[tuple[float, float]]] = {}
    for point in frontier["points"]:
        if point["quality"] is None or point["mean_depth"] is None:
            continue
        ways = [point["setting"][name] for name in ("measure", "decision") if name in point["setting"]]
        name = point["policy"] + (f" ({', '.join(ways)})" if ways else "")
        found.setdefault(name, []).append((point["mean_depth"], point["quality"]))
    return found
