"""``depthwise depths``: how deep the words of a run go, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from depthwise.cli.run_arguments import quieten

if TYPE_CHECKING:
    from collections.abc import Iterable

    from depthwise.depth.word_table import WordTable

MOST_TELLING = 10
UNSEEN = "never seen"


def depths(
    run: Annotated[str, typer.Argument(help="The folder of a run whose words have depths.", metavar="RUN")],
    words: Annotated[
        str | None, typer.Option(help="Show these words, with commas between them, instead of those that tell most.")
    ] = None,
) -> None:
    """Show how many blocks words run, with what they tell about labels; draw RUN/results/word-depths.png.

    Information is that of word and label in nats, summed over labels; documents are those of the training data.
    """
    from depthwise.data.words import WordNormalizer
    from depthwise.evaluation import open_run
    from depthwise.evaluation.word_depths import table_of, write_plot

    quieten()
    task = open_run(run)
    table = table_of(task, run)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    summary = table.summary()
    scale = "".join(f", {name} {summary[name]:.4g}" for name in ("min", "max", "width") if name in summary)
    console.print(
        f"{run}: {len(table.depths):,} words of {table.counts.num_documents:,} documents by "
        f"{table.options.estimator}{scale}; words never seen run {table.unseen_depth}"
    )
    console.print(_histogram(table))
    if words is None:
        found: Iterable[str] = table.counts.words[:MOST_TELLING]  # they are sorted by what they tell
    else:
        normalize = WordNormalizer(task.tokenizers.source)
        found = [normalize(word.strip()) for word in words.split(",") if word.strip()]
    console.print(_words(table, found))
    console.print(f"the histogram is in {write_plot(Path(run), table)}")


def _histogram(table: "WordTable") -> Table:
    from depthwise.evaluation.word_depths import occurrences

    shown = Table("depth", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("different words", "share", "share of all words"):
        shown.add_column(name, justify="right")
    counts, running = table.histogram().tolist(), occurrences(table)
    for depth, (count, share) in enumerate(zip(counts, (running / max(1, running.sum())).tolist(), strict=True), 1):
        shown.add_row(str(depth), f"{count:,}", f"{count / len(table.depths):.1%}", f"{share:.1%}")
    return shown


def _words(table: "WordTable", words: "Iterable[str]") -> Table:
    shown = Table("word", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("depth", "information", "documents"):
        shown.add_column(name, justify="right")
    frequencies = table.counts.frequencies()
    for word in words:
        place = table.place_of(word)
        if place is None:
            shown.add_row(word, str(table.unseen_depth), UNSEEN, "0")
            continue
        told = "-" if table.information is None else f"{table.information[place]:.3g}"
        shown.add_row(word, str(table.depths[place]), told, f"{frequencies[place]:,}")
    return shown
