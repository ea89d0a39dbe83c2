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
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

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
