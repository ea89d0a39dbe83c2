"""How layers were used while runs were trained, as pictures of their records.

They are those of Li et al. (2020): layers and samples over time, by language at the end, norms of the gradients of
every layer, depths and losses over time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from depthwise.config.latent import GATED_SIDES
from depthwise.evaluation.layer_records import Record

WIDTH, HEIGHT, DOTS_PER_INCH = 6.0, 3.4, 150


def figures(records: Sequence[Record], sides: Sequence[str] = GATED_SIDES) -> dict[str, Figure]:
    """All that can be drawn of these sides of runs, by name."""
    gated = [(record, side) for record in records for side in sides if side in record.probabilities]
    found: dict[str, Figure] = {}
    if gated:
        found["utilisation"] = _maps(
            [(f"{record.name}, {side}", record.updates, _mean(record.probabilities[side])) for record, side in gated],
            "probability in the mean over languages",
        )
        found["samples"] = _maps(
            [(f"{record.name}, {side}", record.updates, _mean(record.samples[side])) for record, side in gated],
            "last sample in the mean over languages",
        )
        found["languages"] = _languages(gated)
        depths = {f"effective_depth/{side}": f", {side}" for side in sides}
        found["depths"] = _curves(records, depths, "layers above one half,\nin the mean over languages")
    norms = [(record, side) for record in records for side in sides if side in record.gradients]
    if norms:
        maps = [(f"{record.name}, {side}", *record.gradients[side]) for record, side in norms]
        shown = [(name, updates, np.log10(np.maximum(values, 1e-12))) for name, updates, values in maps]
        flat = np.concatenate([values.ravel() for _, _, values in shown])
        finite = flat[np.isfinite(flat)]
        limits = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
        found["gradients"] = _maps(shown, "log10 of the gradient's norm", limits)
    found["learning"] = _learning(records)
    return found


def _mean(by_language: Mapping[str, np.ndarray]) -> np.ndarray:
    mean: np.ndarray = np.mean(list(by_language.values()), axis=0)
    return mean


def _maps(
    maps: Sequence[tuple[str, list[int], np.ndarray]], what: str, limits: tuple[float, float] = (0.0, 1.0)
) -> Figure:
    """One picture for each run: updates from left to right, layers from bottom to top.

    All columns are equally wide, between the first update and the last; a single one is around its update.
    """
    figure, places = _places(len(maps))
    for axes, (name, updates, values) in zip(places, maps, strict=True):
        margin = 0.5 if updates[0] == updates[-1] else 0.0
        image = axes.imshow(
            values.T,
            origin="lower",
            aspect="auto",
            interpolation="nearest",
            extent=(updates[0] - margin, updates[-1] + margin, -0.5, values.shape[1] - 0.5),
            vmin=limits[0],
            vmax=limits[1],
        )
        axes.set(xlabel="update", ylabel="layer")
        _whole_ticks(axes.xaxis, axes.yaxis)
        axes.set_title(name, fontsize="medium")
        figure.colorbar(image, ax=axes, label=what)
    return figure


def _places(num: int) -> tuple[Figure, list[Axes]]:
    """A figure with room for so many pictures: one column for up to three of them, two for up to eight, else three."""
    num_columns = 1 if num <= 3 else 2 if num <= 8 else 3
    num_rows = -(-num // num_columns)
    figure = Figure(figsize=(WIDTH * num_columns, HEIGHT * num_rows), layout="constrained")
    return figure, [figure.add_subplot(num_rows, num_columns, place + 1) for place in range(num)]


def _languages(gated: Sequence[tuple[Record, str]]) -> Figure:
    """Which layers each language uses at the end."""
    figure, places = _places(len(gated))
    for axes, (record, side) in zip(places, gated, strict=True):
        last = {name: values[-1] for name, values in record.probabilities[side].items()}
        image = axes.imshow(np.array(list(last.values())), aspect="auto", vmin=0, vmax=1)
        names = [f"{name} ({int((values > 0.5).sum())})" for name, values in last.items()]
        axes.set(xlabel="layer", yticks=range(len(names)), yticklabels=names)
        _whole_ticks(axes.xaxis)
        axes.set_title(f"{record.name}, {side}", fontsize="medium")
        figure.colorbar(image, ax=axes, label="probability")
    return figure


def _curves(records: Sequence[Record], metrics: Mapping[str, str], label: str) -> Figure:
    """One line for each run and each of these metrics that it has, named by the run and what goes with the metric."""
    figure, axes = _over_updates(label)
    for record in records:
        for metric, suffix in metrics.items():
            if metric in record.curves:
                _plot(axes, record.curves[metric], label=record.name + suffix)
    if axes.lines:
        axes.legend(fontsize="small")
    return figure


def _learning(records: Sequence[Record]) -> Figure:
    """Losses of the validation data and, dashed or hollow, of training, both in the colour of the run."""
    figure, axes = _over_updates("negative log-likelihood by token")
    for number, record in enumerate(records):
        for metric, style, fill, suffix in (("valid_nll", "-", "full", ""), ("nll", "--", "none", ", training")):
            if metric in record.curves:
                look = {"linestyle": style, "fillstyle": fill, "color": f"C{number}"}
                _plot(axes, record.curves[metric], label=record.name + suffix, **look)
    if axes.lines:
        axes.legend(fontsize="small")
    return figure


def _plot(axes: Axes, curve: tuple[list[int], list[float]], **look: Any) -> None:
    """A curve over updates; where it has only one point, of which a line shows nothing, that is marked."""
    updates, values = curve
    axes.plot(updates, values, marker="o" if len(updates) == 1 else None, **look)


def _over_updates(label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes: Axes = figure.add_subplot()
    axes.set(xlabel="update", ylabel=label)
    _whole_ticks(axes.xaxis)
    axes.grid(alpha=0.3)
    return figure, axes


def _whole_ticks(*of: Axis) -> None:
    """Updates and layers are whole numbers, so that ticks are too, even if there is only one."""
    for axis in of:
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1))
