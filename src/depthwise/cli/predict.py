"""``depthwise predict``: lines in, predictions out."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from depthwise.cli.run_arguments import (
    DepthOption,
    Device,
    DeviceOption,
    DraftedOption,
    LosslessOption,
    Precision,
    PrecisionOption,
    depth_of,
    drafting_of,
    paths_and_changes,
    quieten,
)
from depthwise.errors import DataError, DepthwiseError, InputError

if TYPE_CHECKING:
    from depthwise.evaluation import Line, Reply

PARTIAL = ".partial"


def predict(
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="A run folder, a file or - for standard input, and changes.", metavar="RUN [FILE|-] [KEY=VALUE...]"
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write here instead of to standard output.")] = None,
    score: Annotated[
        bool,
        typer.Option(
            "--score", help="Lines are input<TAB>output (a language model: text); print the output's log-probability."
        ),
    ] = False,
    depths: Annotated[
        bool,
        typer.Option(
            "--depths", help="Add, behind a tab, how many blocks each token ran; with depths of words, word:depth."
        ),
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="The language to write, for models of several, or a pair such as de-en (generation.target).",
            metavar="LANGUAGE",
        ),
    ] = None,
    depth: DepthOption = "trained",
    lossless: LosslessOption = None,
    drafted: DraftedOption = None,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = Precision.fp32,
) -> None:
    """Answer every line of input with a line of output, in order, as the input arrives.

    A line is a text, or both texts of a pair with a tab between them; a model of several target languages wants
    language<TAB>text, or --to LANGUAGE for all lines (a pair, where gates ask for both languages). A language model
    continues a line; a masked one fills <mask>, and with --score the output lists a token for each. Empty lines stay
    empty; lines that are too long are cut; what cannot be answered gives an empty line. Notes on such lines go to
    standard error. With --depth policy, tokens leave by the run's policy, or by another one as for depthwise evaluate:
    policy.kind=confidence policy.threshold=0.9. With --lossless nobody leaves: text is that of full depth, made faster
    by drafts.
    """
    paths, given = paths_and_changes(arguments)
    wanted_depth = depth_of(depth)
    if not 1 <= len(paths) <= 2:
        raise typer.BadParameter("give a run folder and, at most, one file", param_hint="RUN [FILE|-]")
    drafting = drafting_of(lossless, drafted)
    if score and drafting is not None:
        raise typer.BadParameter("goes with predictions, not with --score", param_hint="--lossless")
    if score and depths:
        raise typer.BadParameter("goes with predictions, not with --score", param_hint="--depths")
    source = Path(paths[1]) if len(paths) == 2 and paths[1] != "-" else None
    if source is not None and not source.is_file() and not source.is_fifo():
        raise DataError(f"{source} does not exist or is no file; give a text file, or - for standard input")

    from depthwise.data.lines import count_lines, opened
    from depthwise.evaluation import load_run, parted, predict_lines, read_chunks, score_lines
    from depthwise.evaluation.word_depths import predict_with_words, words_decide

    quieten()
    changes, policy_changes = parted(given if to is None else [*given, f"generation.target={to}"])
    run = load_run(paths[0], changes, device.value, precision.value, wanted_depth, policy_changes, drafting)
    if score and not run.task.has_probabilities:
        raise InputError(f"{run.task.why_no_probability}; leave --score out")

    def chunks() -> Iterator[list["Line"]]:
        max_chars = run.recipe.data.max_chars
        if source is None:
            yield from read_chunks(sys.stdin.buffer.read1, max_chars)  # type: ignore[union-attr]
        else:
            with opened(source) as stream:
                yield from read_chunks(stream.read1, max_chars)  # type: ignore[union-attr]

    is_seen = source is not None and sys.stderr.isatty() and not (out is None and sys.stdout.isatty())
    total = count_lines(source) if is_seen and source is not None and source.is_file() else None
    if depths and words_decide(run.task):
        replies = predict_with_words(run, chunks())
    else:
        replies = score_lines(run, chunks()) if score else predict_lines(run, chunks(), depths=depths)
    try:
        with _output(out) as write:
            _answer(replies, write, "standard input" if source is None else str(source), total)
    except BrokenPipeError:
        # Whoever reads has seen enough. Python would flush once more at its end and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


def _answer(replies: Iterator[list["Reply"]], write: Callable[[bytes], None], name: str, total: int | None) -> None:
    """Write chunk by chunk, with notes as they come and a bar where the number of lines is known."""
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=total is None) as progress:
        bar = progress.add_task("predicting", total=total)
        for chunk in replies:
            for reply in chunk:
                for note in reply.notes:
                    console.print(f"note: {name}:{reply.number}: the line {note}")
            write("".join(f"{reply.text}\n" for reply in chunk).encode())
            progress.advance(bar, len(chunk))


@contextmanager
def _output(path: Path | None) -> Iterator[Callable[[bytes], None]]:
    """Where lines go. A file takes its name when it is whole; until then it is beside it, and stays after an error."""
    if path is None:
        yield _writer(sys.stdout.buffer, "standard output")
        return
    is_special = path.exists() and not path.is_file() and not path.is_dir()  # such as a named pipe
    beside = path if is_special else path.with_name(path.name + PARTIAL)
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        with beside.open("wb") as file:
            yield _writer(file, str(beside))
        if not is_special:
            beside.replace(path)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}; give another file") from None
    except (KeyboardInterrupt, DepthwiseError):
        if not is_special and beside.exists() and beside.stat().st_size:
            typer.echo(f"what was done by then is in {beside}", err=True)
        raise


def _writer(file: BinaryIO, name: str) -> Callable[[bytes], None]:
    """Writes so that whoever reads gets it at once."""

    def write(content: bytes) -> None:
        try:
            file.write(content)
            file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise DataError(f"{name} cannot be written: {error.strerror}; make room and start again") from None

    return write
