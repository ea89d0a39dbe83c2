"""``depthwise reconstruct``: depths of words by how well a masked language model guesses them."""

import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from depthwise.cli.run_arguments import quieten
from depthwise.errors import DataError

AT_ONCE = 256
"""Lines whose copies are masked together."""


def reconstruct(
    run: Annotated[
        str, typer.Argument(help="The folder of a masked language model that was trained with exits.", metavar="RUN")
    ],
    file: Annotated[str, typer.Argument(help="A text file, or - for standard input.", metavar="[FILE|-]")] = "-",
    penalty: Annotated[float, typer.Option(min=0, help="What a block costs, in nats: the lambda of the paper.")] = 0.1,
    copies: Annotated[
        int | None,
        typer.Option(min=1, help="At most so many masked copies of a text, with several words masked in each."),
    ] = None,
    words: Annotated[str, typer.Option(help="What a word is: parted or blanks, as in model.word_depths.words.")] = (
        "parted"
    ),
    labelled: Annotated[
        bool, typer.Option("--labelled", help="Lines are label<TAB>text; the label is passed over.")
    ] = False,
    cache: Annotated[
        Path | None, typer.Option(help="Where losses are kept; none means $DEPTHWISE_CACHE, or ~/.cache/depthwise.")
    ] = None,
) -> None:
    """Print every line with the number of blocks that each of its words needs, such as ``a:4 great:1``.

    Each word is masked by itself and guessed after every block; its depth is that with the least loss, where every
    block costs the penalty. Losses are kept in the cache: what was masked before, by this or by training with
    model.word_depths.estimator=reconstruction, takes no time, and an interrupted command goes on where it was.
    """
    if words not in ("parted", "blanks"):
        raise typer.BadParameter("give parted or blanks", param_hint="--words")
    if file != "-" and not Path(file).is_file():
        raise DataError(f"{file} does not exist or is no file; give a text file, or - for standard input")

    from depthwise.data.lines import count_lines
    from depthwise.data.progress import shown
    from depthwise.tasks.reconstruction import Reconstruction, ReconstructionMarks
    from depthwise.tasks.run_folder import cache_folder

    quieten()
    estimator = Reconstruction(Path(run), cache_folder(None if cache is None else str(cache)), copies)
    marks = ReconstructionMarks(estimator, penalty, words)
    started, num_words, num_blocks = time.perf_counter(), 0, 0
    total = None if file == "-" else count_lines(Path(file))
    for lines in _portions(shown(_lines(file, labelled=labelled), "masking words", total)):
        for pairs in marks.words_of_texts(lines):
            typer.echo(" ".join(f"{word}:{depth}" for word, depth in pairs))
            num_words += len(pairs)
            num_blocks += sum(depth for _, depth in pairs)
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    console.print(
        f"{num_words:,} words run {num_blocks / max(1, num_words):.2f} of {estimator.num_layers} blocks in the mean; "
        f"finding that took {time.perf_counter() - started:.1f} s"
    )


def _lines(file: str, *, labelled: bool) -> Iterator[str]:
    from depthwise.data.lines import Fault, LineRules, read_lines

    if file == "-":
        lines: Iterator[str | Fault] = iter(sys.stdin.read().splitlines())
    else:
        lines = read_lines(Path(file), LineRules().max_chars)
    for number, line in enumerate(lines, start=1):
        if isinstance(line, Fault) and line.kind == "empty":
            yield ""
            continue
        if isinstance(line, Fault):
            raise DataError(f"{file}:{number}: {line.message}; mend the line")
        if labelled and "\t" not in line:
            raise DataError(f"{file}:{number}: there is no label<tab>text; leave --labelled out, or mend the line")
        yield line.partition("\t")[2] if labelled else line


def _portions(lines: Iterator[str]) -> Iterator[list[str]]:
    while portion := list(islice(lines, AT_ONCE)):
        yield portion
