"""``depthwise report``: one page to look at."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from depthwise.cli.run_arguments import depth_of, paths_and_changes, quieten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depthwise.report import RunFiles

NUM_SAMPLES = 100


def report(
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="Folders of runs, and policy.kind=confidence and the like, which say with --depth policy by what "
            "tokens leave.",
            metavar="RUN... [policy.KEY=VALUE...]",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page goes.", metavar="FILE")] = Path(
        "report.html"
    ),
    samples: Annotated[
        int,
        typer.Option(
            help="Run the first N test inputs (else validation) of every run that has no depths of tokens yet; 0 runs "
            "nothing.",
            metavar="N",
            min=0,
        ),
    ] = NUM_SAMPLES,
    depth: Annotated[
        str | None,
        typer.Option(
            "--depth",
            help="Look at tokens at this setting instead of the one that the page tells of first.",
            metavar="trained|full|N|policy|NAME",
        ),
    ] = None,
) -> None:
    """Write one self-contained page that shows what runs save and what that costs.

    It has the frontiers of depthwise sweep, calibrated settings, evaluations, tokens coloured by the depth at which
    they left, learning curves, layers over time, recipes and commands; what a run folder lacks, it says. Runs of one
    recipe that differ in their seeds are shown as mean and band. Depths of tokens are kept in RUN/results/depths.json.
    """
    folders, changes = paths_and_changes(arguments)
    if not folders:
        raise typer.BadParameter("name the folder of a run", param_hint="RUN")
    odd = [change for change in changes if not change.startswith("policy.")]
    if odd:
        raise typer.BadParameter(f"{odd[0]} is none of a policy's options", param_hint="RUN")
    wanted = None if depth is None else (depth_of(depth), changes)
    if changes and depth != "policy":
        raise typer.BadParameter(f"{changes[0]} says nothing without --depth policy", param_hint="RUN")

    from depthwise.report import read_runs, sample

    quieten()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    runs = read_runs([Path(folder) for folder in folders])
    for run in runs if samples else ():
        sample(run, samples, wanted, console.print)
    data, size = write_page(runs, out)
    if len(data["headlines"]) == 1:
        console.print(" ".join(data["headlines"][0]["sentences"][:2]))
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    console.print(f"the page of {count} is {out} ({size / 1e6:.1f} MB); open it in a browser")
    num_missing = sum(len(run["missing"]) for run in data["runs"])
    if num_missing:
        things = "1 thing is" if num_missing == 1 else f"{num_missing} things are"
        console.print(f"{things} missing in it, which it names")


def write_page(runs: "Sequence[RunFiles]", out: Path) -> tuple[dict[str, Any], int]:
    """Write the page of runs; gives what it shows, and how many bytes it has."""
    from depthwise.evaluation import replace_file
    from depthwise.report import page, page_data

    data = page_data(runs)
    content = page(data).encode()
    replace_file(out, content)
    return data, len(content)
