"""``depthwise sweep``: what quality costs, at every fixed depth and under every policy."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from depthwise.cli.run_arguments import (
    Device,
    DeviceOption,
    Precision,
    PrecisionOption,
    Split,
    paths_and_changes,
    quieten,
)
from depthwise.config import ConfidenceConfig

if TYPE_CHECKING:
    from depthwise.evaluation import Frontier, Point

Cell = Callable[["Point"], str]
"""What a column of a table says about a point."""


def sweep(
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="A run folder, changes such as generation.num_beams=1, and policy.kind=uniform and the like to try "
            "one more policy.",
            metavar="RUN [KEY=VALUE...]",
        ),
    ],
    split: Annotated[Split, typer.Option(help="Which part of the data.")] = Split.valid,
    limit: Annotated[int | None, typer.Option(help="Take only the first N examples.", metavar="N", min=1)] = None,
    batch_rows: Annotated[
        int | None,
        typer.Option(help="Answer at most N inputs at a time; 1 shows what a single one takes.", metavar="N", min=1),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option("--beside", help="A shallower run that was trained by itself; may be repeated.", metavar="RUN"),
    ] = None,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = Precision.fp32,
) -> None:
    """Measure quality against mean depth, token-layers, FLOPs and time; write RUN/results/frontier.json and .png.

    The same data is run at every exit as a fixed depth, at full depth, by the run's own policy (at a grid of thresholds
    where it has one) and by policies that need no training: confidence, saturation and patience. Changes reach the
    data, generation and evaluation sections of the recipe, and hold for the runs beside too. Those to the policy name
    one setting that is tried as well: policy.kind=uniform, or policy.kind=confidence policy.threshold=0.85.
    """
    folders, changes = paths_and_changes(arguments)
    if len(folders) != 1:
        raise typer.BadParameter("name the folder of one run; others go behind --beside", param_hint="RUN")

    from depthwise.evaluation import chosen_policy, load_run, parted, policies_to_try, read_examples, write_frontier
    from depthwise.evaluation import sweep as swept

    changes, of_policy = parted(changes)
    if batch_rows is not None:
        changes.append(f"evaluation.batch_rows={batch_rows}")
    quieten()
    how = changes, device.value, precision.value
    run, others = load_run(folders[0], *how), [load_run(folder, *how) for folder in beside or ()]
    asked = [*policies_to_try(run), chosen_policy(run.model, run.folder, of_policy)] if of_policy else None
    frontier = swept(run, split.value, read_examples(run.task, split.value)[:limit], others, asked)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    at_once = "" if frontier.batch_rows is None else f", {frontier.batch_rows:,} at a time"
    console.print(f"{folders[0]}, {frontier.split}: {frontier.examples:,} examples{at_once} on {frontier.hardware}")
    console.print(frontier_table(frontier))
    numbers, plot = write_frontier(Path(folders[0]), frontier)
    console.print(f"the numbers are in {numbers}, their plot in {plot}")


def frontier_table(frontier: "Frontier", columns: Mapping[str, Cell] | None = None, *, by_depth: bool = False) -> Table:
    """All points, those of each policy together or all by their mean depth; the full model is marked."""
    table = Table("policy", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown = _columns(frontier) if columns is None else columns
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    points = sorted(frontier.points, key=lambda point: point.mean_depth or 0) if by_depth else frontier.points
    last = None
    for point in points:
        if not by_depth and last not in (None, point.policy):
            table.add_row()
        last = point.policy
        name = name_of(point) + (" (full model)" if point is frontier.full else "")
        table.add_row(name, *(cell(point) for cell in shown.values()))
    return table


def _columns(frontier: "Frontier") -> dict[str, Cell]:
    return {
        frontier.metric: lambda point: "not finite" if point.quality is None else f"{point.quality:.2f}",
        "depth" if frontier.depth_of is None else f"{frontier.depth_of} depth": depth_cell,
        "token-layers": lambda point: f"{point.token_layers:,}",
        "GFLOPs": lambda point: f"{point.flops / 1e9:,.3f}",
        "seconds": seconds_cell,
    }


def depth_cell(point: "Point") -> str:
    return "-" if point.mean_depth is None else f"{point.mean_depth:.2f}"


def seconds_cell(point: "Point") -> str:
    return f"{point.seconds:.2f}"


def name_of(point: "Point") -> str:
    """A policy and the values of its setting; the usual measure goes without saying."""
    said = [value for value in point.setting.values() if value != ConfidenceConfig.measure]
    values = [each for value in said for each in (value if isinstance(value, list) else [value])]
    return " ".join([point.policy, *(f"{value:g}" if isinstance(value, float) else str(value) for value in values)])
