"""How layers were used while runs were trained, as pictures: what ``layers.jsonl`` and ``metrics.jsonl`` hold.

They are those of Li et al. (2020): layers and samples over time, by language at the end, norms of the gradients of
every layer, depths and losses over time.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthwise.config.latent import GATED_SIDES
from depthwise.errors import DataError

WIDTH, HEIGHT, DOTS_PER_INCH = 6.0, 3.4, 150
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
    metrics = _lines(run / "metrics.jsonl")
    if not metrics:
        raise DataError(f"{run / 'metrics.jsonl'} is missing or empty; name the folder of a run that was trained")
    layers = _lines(run / "layers.jsonl")
    sides = [name for name in layers[0] if name != "update"] if layers else []

    def stacked(what: str) -> dict[str, dict[str, np.ndarray]]:
        return {
            side: {name: np.array([line[side][name][what] for line in layers], float) for name in layers[0][side]}
            for side in sides
        }

    names = dict.fromkeys(name for line in metrics for name in line if name not in ("update", "epoch"))
    curves = {name: _curve(metrics, name) for name in names}
    return Record(
        name=run.name,
        updates=[line["update"] for line in layers],
        probabilities=stacked("probabilities"),
        samples=stacked("samples"),
        gradients=_gradients(metrics),
        curves={name: curve for name, curve in curves.items() if curve[0]},
    )


def in_use(record: Record, side: str) -> str:
    """How many layers of a gated side are likely used at the end of the log, and how many gates are undecided."""
    last = np.array([rows[-1] for rows in record.probabilities[side].values()])
    num_open = (last > 0.5).sum(1).mean()
    num_undecided = ((last > UNDECIDED[0]) & (last < UNDECIDED[1])).sum(1).mean()
    languages = f", in the mean over {len(last)} languages" if len(last) > 1 else ""
    return (
        f"{record.name}, {side}, update {record.updates[-1]:,}: {num_open:g} of {last.shape[1]} layers above 0.5, "
        f"{num_undecided:g} between {UNDECIDED[0]} and {UNDECIDED[1]}{languages}"
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}; it is no log of a run") from None


def _curve(metrics: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    found = [(line["update"], line[name]) for line in metrics if line.get(name) is not None]
    return [update for update, _ in found], [value for _, value in found]


def _gradients(metrics: Sequence[Mapping[str, Any]]) -> dict[str, tuple[list[int], np.ndarray]]:
    """Norms of the gradients of all layers of each side, where they were logged; those that were not finite are not."""
    found: dict[str, tuple[list[int], list[list[float]]]] = {}
    for line in metrics:
        by_side: dict[str, dict[int, float]] = {}
        for name, value in line.items():
            if match := _NORM.fullmatch(name):
                by_side.setdefault(match[1], {})[int(match[2])] = np.nan if value is None else value
        for side, norms in by_side.items():
            updates, rows = found.setdefault(side, ([], []))
            updates.append(line["update"])
            rows.append([norms[layer] for layer in sorted(norms)])
    return {side: (updates, np.array(rows)) for side, (updates, rows) in found.items()}


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
        low, high = (float(edge(values)) for edge, values in ((np.nanmin, _flat(shown)), (np.nanmax, _flat(shown))))
        found["gradients"] = _maps(shown, "log10 of the gradient's norm", (low, high))
    found["learning"] = _learning(records)
    return found


def _mean(by_language: Mapping[str, np.ndarray]) -> np.ndarray:
    mean: np.ndarray = np.mean(list(by_language.values()), axis=0)
    return mean


def _flat(maps: Sequence[tuple[str, list[int], np.ndarray]]) -> np.ndarray:
    return np.concatenate([values.ravel() for _, _, values in maps])


def _maps(
    maps: Sequence[tuple[str, list[int], np.ndarray]], what: str, limits: tuple[float, float] = (0.0, 1.0)
) -> Figure:
    """One picture for each run: updates from left to right, layers from bottom to top."""
    figure, places = _places(len(maps))
    for axes, (name, updates, values) in zip(places, maps, strict=True):
        extent = (updates[0], updates[-1] or 1, -0.5, values.shape[1] - 0.5)
        image = axes.imshow(
            values.T,
            origin="lower",
            aspect="auto",
            interpolation="nearest",
            extent=extent,
            vmin=limits[0],
            vmax=limits[1],
        )
        axes.set(xlabel="update", ylabel="layer")
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
        axes.set_title(f"{record.name}, {side}", fontsize="medium")
        figure.colorbar(image, ax=axes, label="probability")
    return figure


def _curves(records: Sequence[Record], metrics: Mapping[str, str], label: str) -> Figure:
    """One line for each run and each of these metrics that it has, named by the run and what goes with the metric."""
    figure, axes = _over_updates(label)
    for record in records:
        for metric, suffix in metrics.items():
            if metric in record.curves:
                axes.plot(*record.curves[metric], label=record.name + suffix)
    if axes.lines:
        axes.legend(fontsize="small")
    return figure


def _learning(records: Sequence[Record]) -> Figure:
    """Losses of the validation data and, dashed, of training, both in the colour of the run."""
    figure, axes = _over_updates("negative log-likelihood by token")
    for number, record in enumerate(records):
        for metric, style, suffix in (("valid_nll", "-", ""), ("nll", "--", ", training")):
            if metric in record.curves:
                axes.plot(*record.curves[metric], style, color=f"C{number}", label=record.name + suffix)
    if axes.lines:
        axes.legend(fontsize="small")
    return figure


def _over_updates(label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes: Axes = figure.add_subplot()
    axes.set(xlabel="update", ylabel=label)
    axes.grid(alpha=0.3)
    return figure, axes
