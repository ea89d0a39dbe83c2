"""``depthwise train``: from a recipe to a run."""

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from depthwise.config import read_recipe


def leads() -> bool:
    """Whether this process speaks for those that torchrun started with it."""
    return os.environ.get("RANK", "0") == "0"


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe: a YAML file, or a built-in name such as start/classify.")],
    changes: Annotated[
        list[str] | None, typer.Argument(help="Changes such as data.train=a.tsv seed=3.", metavar="[KEY=VALUE]...")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.", metavar="RUN")] = ...,  # type: ignore[assignment]
) -> None:
    """Train a recipe. Interrupted in whatever way, the same command goes on where the folder stopped."""
    asked = read_recipe(recipe, changes or ())
    console = Console(highlight=False, soft_wrap=True, markup=False, quiet=not leads())

    import transformers

    from depthwise.training.display import clock
    from depthwise.training.run import train as train_run

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    done = train_run(asked, out, shlex.join(["depthwise", "train", recipe, *(changes or ())]))
    if done.interrupted is not None:
        console.print(f"stopped after update {done.num_updates:,}; the same command goes on from there")
        raise typer.Exit(128 + done.interrupted)
    best = "" if done.best is None else f", best validation {done.metric} {done.best:.4g}"
    state = "was trained before" if done.was_finished else "trained"
    console.print(
        f"{out}: {done.num_parameters / 1e6:.1f}M parameters {state} in {clock(done.seconds)} "
        f"({done.num_updates:,} updates){best}"
    )
    if asked.data.test:
        console.print(f"next: depthwise evaluate {out}")
