"""``depthwise demo``: a small translator that decides how deep to think, from making its data to judging it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from depthwise.cli.demo_results import show_results
from depthwise.config import Recipe, read_recipe

RECIPE = "demo/numbers"


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.", metavar="DIR")] = Path("runs/demo"),
    numbers: Annotated[
        int, typer.Option(help="How many numbers to train on.", min=200, max=500_000, hidden=True)
    ] = 8000,
    updates: Annotated[int | None, typer.Option(help="Stop training after so many.", min=1, hidden=True)] = None,
    swept: Annotated[int, typer.Option(help="How many numbers to sweep.", min=1, hidden=True)] = 150,
) -> None:
    """Train a translator from digits to number words whose easy tokens leave early, and show what that saves.

    "de 4 7 1 1" becomes "viertausendsiebenhundertelf". It takes two or three minutes on a CPU: training, then accuracy
    against depth and time at every exit and by confidence, then numbers that training never saw, with the depth of
    every token, and a page with all of it. Interrupted in whatever way, the same command goes on; when all is done, it
    measures again.
    """
    folder = out.resolve()
    data = folder / "data"
    recipe = read_recipe(RECIPE, () if updates is None else [f"training.max_updates={updates}"])
    files: dict[str, Any] = {
        split: (f"{data / split}.digits", f"{data / split}.words") for split in ("train", "valid", "test")
    }
    recipe = replace(recipe, data=replace(recipe.data, **files, cache=str(folder / "cache")))
    console = Console(highlight=False, soft_wrap=True, markup=False)

    import transformers

    from depthwise.data.number_words import LANGUAGES, split_numbers, write_corpus
    from depthwise.training.beginning import begin

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    splits = split_numbers(numbers, numbers // 16, numbers // 16)
    begin(folder, recipe)
    write_corpus(data, splits)
    console.print(f"{len(splits['train']):,} numbers in English and German for training: {out / 'data'}")
    _train(recipe, folder, out, console)
    show_results(out, swept * len(LANGUAGES), console)


def _train(recipe: Recipe, folder: Path, out: Path, console: Console) -> None:
    from depthwise.training.display import clock
    from depthwise.training.run import train

    done = train(recipe, folder)
    if done.interrupted is not None:
        console.print(f"stopped after update {done.num_updates:,}; the same command goes on from there")
        raise typer.Exit(128 + done.interrupted)
    state = "was trained before" if done.was_finished else "trained"
    console.print(f"{out}: {done.num_parameters / 1e6:.2f}M parameters {state} in {clock(done.seconds)}")
