"""``depthwise demo``: a small translator, from making its data to judging it, in a minute or two."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from depthwise.config import Recipe, read_recipe

if TYPE_CHECKING:
    from depthwise.evaluation import Run

RECIPE = "demo/numbers"
NUM_SAMPLES = 8


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.", metavar="DIR")] = Path("runs/demo"),
    numbers: Annotated[
        int, typer.Option(help="How many numbers to train on.", min=200, max=500_000, hidden=True)
    ] = 8000,
    updates: Annotated[int | None, typer.Option(help="Stop training after so many.", min=1, hidden=True)] = None,
) -> None:
    """Train a translator from digits to number words, and try it on numbers that it never saw.

    "de 4 7 1 1" becomes "viertausendsiebenhundertelf". It takes a minute or two on a CPU. Interrupted in whatever way,
    the same command goes on; when all is done, it shows the results again.
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

    from depthwise.data.number_words import split_numbers, write_corpus
    from depthwise.evaluation import load_run
    from depthwise.training.beginning import begin

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    splits = split_numbers(numbers, numbers // 40, numbers // 16)
    begin(folder, recipe)
    write_corpus(data, splits)
    console.print(f"{len(splits['train']):,} numbers in English and German for training: {out / 'data'}")
    _train(recipe, folder, out, console)
    console.print(f"{len(splits['test']):,} numbers that training never saw, in both languages:\n")
    _judge(load_run(folder), console)
    console.print(
        "\nWhat next:\n"
        f"  echo 'de 1 2 3 4 5' | depthwise predict {out} -\n"
        f"  depthwise evaluate {out}\n"
        "  depthwise train start/translate data.train=mine data.valid=… data.source=en data.target=de --out runs/mine"
    )


def _train(recipe: Recipe, folder: Path, out: Path, console: Console) -> None:
    from depthwise.training.display import clock
    from depthwise.training.run import train

    done = train(recipe, folder)
    if done.interrupted is not None:
        console.print(f"stopped after update {done.num_updates:,}; the same command goes on from there")
        raise typer.Exit(128 + done.interrupted)
    state = "was trained before" if done.was_finished else "trained"
    console.print(f"{out}: {done.num_parameters / 1e6:.2f}M parameters {state} in {clock(done.seconds)}")


def _judge(run: "Run", console: Console) -> None:
    """How many held-out numbers are right in each language, and a few of them, wrong ones first."""
    from depthwise.evaluation.evaluating import read_examples
    from depthwise.evaluation.predicting import predict_all

    examples = read_examples(run.task, "test")
    found = predict_all(run, [run.task.inputs_of(example) for example in examples])
    rows = [(*example.texts, prediction.text) for example, prediction in zip(examples, found, strict=True)]
    console.print(_accuracy(rows))
    wrong = [row for row in rows if not _is_right(row)]
    samples = [*wrong[: NUM_SAMPLES // 2], *(row for row in rows if _is_right(row))][:NUM_SAMPLES]
    for source, right, given in samples:
        console.print(f"  {source:15} {given}" + ("" if given == right else f"   (right: {right})"))


def _accuracy(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table("language", "numbers", "right")
    names = {"en": "English", "de": "German"}
    for language, name in names.items():
        of_language = [_is_right(row) for row in rows if row[0].startswith(language)]
        table.add_row(name, f"{len(of_language):,}", f"{100 * sum(of_language) / len(of_language):.1f} %")
    return table


def _is_right(row: tuple[str, ...]) -> bool:
    return row[1] == row[2]
