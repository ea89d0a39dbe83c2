"""Learning curves of runs side by side: a metric on validation data over updates.

    python benchmarks/curves.py runs/mine runs/other
    python benchmarks/curves.py runs/mine runs/other --metric nll --plot curves.png

Told are the best value of each run, after which update it was reached, and the last one: a run has converged where the
best is not the last. What was logged in training (``RUN/metrics.jsonl``) is read and nothing is run. ``depthwise
report`` draws the same, and more, on a page.
"""

import argparse
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from depthwise.errors import DepthwiseError, InputError
from depthwise.evaluation import replace_file
from depthwise.evaluation.plotting import DOTS_PER_INCH, SIZE
from depthwise.report.curves import VALID
from depthwise.report.reading import METRICS, read_runs
from depthwise.tasks.base import NLL, Task

Curve = list[tuple[int, float]]
"""Updates, each with the value after it."""


def curves_of(folders: Sequence[Path], metric: str) -> dict[str, Curve]:
    """By the names of runs; one that never logged the metric is an error."""
    found = {}
    for run in read_runs(folders):
        for note in run.missing:
            if METRICS in note:
                print(note, file=sys.stderr)
        by_update = {line["update"]: line[VALID + metric] for line in run.metrics if VALID + metric in line}
        if not by_update:
            logged = {name.removeprefix(VALID) for line in run.metrics for name in line if name.startswith(VALID)}
            if not logged:
                raise InputError(f"{run.folder} logged nothing on validation data; name a run trained with data.valid")
            known = ", ".join(sorted(logged))
            raise InputError(f"{run.folder} logged no {metric} on validation data, but {known}; choose with --metric")
        found[run.name] = sorted(by_update.items())
    return found


def best_of(curve: Curve, *, higher: bool) -> tuple[int, float]:
    """The earliest of the best points."""
    return (max if higher else min)(curve, key=lambda point: point[1])


def table_of(curves: Mapping[str, Curve], metric: str, *, higher: bool) -> Table:
    table = Table(title=f"{metric} on validation data", title_justify="left")
    table.add_column("run")
    for title in ("best", "after update", "last", "of updates"):
        table.add_column(title, justify="right")
    for name, curve in curves.items():
        (update, best), (updates, last) = best_of(curve, higher=higher), curve[-1]
        table.add_row(name, f"{best:.4g}", f"{update:,}", f"{last:.4g}", f"{updates:,}")
    return table


def figure_of(curves: Mapping[str, Curve], metric: str, *, higher: bool) -> Figure:
    """A line for each run, its best point marked. The axis leaves out how badly runs begin."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    for name, curve in curves.items():
        (line,) = axes.plot(*zip(*curve, strict=True), label=name)
        axes.plot(*best_of(curve, higher=higher), "o", color=line.get_color())
    values = sorted((value for curve in curves.values() for _, value in curve), reverse=higher)
    worst = values[int(0.9 * (len(values) - 1))]
    spare = 0.1 * abs(worst - values[0]) or 0.1
    axes.set_ylim(*sorted((values[0] + (spare if higher else -spare), worst)))
    axes.set_xlabel("update")
    axes.set_ylabel(f"{metric} on validation data ({'higher' if higher else 'lower'} is better)")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--metric", default="nll", help="one that was logged, such as perplexity or accuracy")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves there, as a PNG")
    options = parser.parse_args()
    try:
        curves = curves_of(options.runs, options.metric)
    except DepthwiseError as error:
        sys.exit(f"{error}")
    higher = options.metric not in Task.lower_is_better and not options.metric.startswith(NLL)
    Console().print(table_of(curves, options.metric, higher=higher))
    if options.plot is not None:
        buffer = io.BytesIO()
        figure_of(curves, options.metric, higher=higher).savefig(buffer, format="png", dpi=DOTS_PER_INCH)
        replace_file(options.plot, buffer.getvalue())


if __name__ == "__main__":
    main()
