"""``depthwise layers``: pictures of how layers were used while runs were trained."""

import io
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from depthwise.errors import DataError


class Side(StrEnum):
    encoder = "encoder"
    decoder = "decoder"


def layers(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, to be drawn beside each other.", metavar="RUN...")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures.", metavar="DIR")],
    side: Annotated[Side | None, typer.Option(help="The side whose layers are drawn, if not both.")] = None,
) -> None:
    """Draw how layers were used while runs were trained.

    Of runs with latent layers: their probabilities and samples over time, by language at the end, and how many are in
    use, which is also printed. Of runs with training.gradient_norms=true: the norms of the gradients of all layers. Of
    all: losses of training and validation.
    """
    from depthwise.evaluation import replace_file
    from depthwise.evaluation.layer_figures import DOTS_PER_INCH, figures
    from depthwise.evaluation.layer_records import in_use, read_record

    records, sides = [read_record(run) for run in runs], [side] if side else list(Side)
    _make_folder(out)
    gated = [(record, each) for record in records for each in sides if each in record.probabilities]
    for record, each in gated:
        typer.echo(in_use(record, each))
    if not gated:
        where = f" of the {side}" if side else ""
        typer.echo(f"no gates{where} are on record: these runs have none, or ended before their first line of the log")
    for name, figure in figures(records, sides).items():
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=DOTS_PER_INCH)
        replace_file(out / f"{name}.png", picture.getvalue())
        typer.echo(out / f"{name}.png")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise DataError(f"{folder} is a file; give a folder for the pictures") from None
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {error.strerror}; give another folder") from None
