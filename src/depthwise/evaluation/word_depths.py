"""The depths of words of a run: behind its predictions, and as a picture."""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from depthwise.depth.word_table import WordTable
from depthwise.errors import InputError
from depthwise.evaluation.plotting import DOTS_PER_INCH, SIZE
from depthwise.evaluation.results import RESULTS, replace_file
from depthwise.evaluation.runs import Run
from depthwise.evaluation.streaming import Line, Reply, predict_lines
from depthwise.tasks import Task
from depthwise.tasks.word_depths import WordDepthTask

PLOT = "word-depths.png"


def words_decide(task: Task) -> bool:
    """Whether tokens run as deep as a table of words says."""
    return isinstance(task, WordDepthTask) and task.word_options is not None


def table_of(task: Task, name: str | Path) -> WordTable:
    """The depths of words of a run, if they have any."""
    if isinstance(task, WordDepthTask) and task.has_word_table:
        return task.word_table
    if words_decide(task):
        raise InputError(
            f"a word of {name} has its depth from where it stands, not from a table; see depthwise predict --depths"
        )
    raise InputError(f"the words of {name} have no depths of their own; train a run with model.word_depths={{}}")


def predict_with_words(run: Run, chunks: Iterable[Sequence[Line]]) -> Iterator[list[Reply]]:
    """As ``predict_lines``; behind the tab stands every word of the line with its depth, such as ``great:2``."""
    task = run.task
    assert isinstance(task, WordDepthTask)
    for lines in chunks:
        (replies,) = predict_lines(run, [lines])
        yield [
            replace(reply, text=f"{reply.text}\t{_in_words(task, line.text)}") if reply.text else reply
            for line, reply in zip(lines, replies, strict=True)
        ]


def _in_words(task: WordDepthTask, line: str) -> str:
    return " ".join(f"{word}:{depth}" for word, depth in task.words_with_depths(line.split("\t")))


def occurrences(table: WordTable) -> npt.NDArray[np.int64]:
    """How many words, counted once for each document that has them, have each depth from 1 on."""
    weights = table.counts.frequencies()
    return np.bincount(table.depths, weights=weights, minlength=table.num_layers + 1)[1:].astype(np.int64)


def write_plot(folder: Path, table: WordTable) -> Path:
    """The histogram of depths, in the results of a run."""
    buffer = io.BytesIO()
    histogram_figure(table).savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    path = folder / RESULTS / PLOT
    replace_file(path, buffer.getvalue())
    return path


def histogram_figure(table: WordTable) -> Figure:
    """Shares of words with each depth: of different ones, and of all that stand in the training documents."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    depths = np.arange(1, table.num_layers + 1)
    for shift, label, counts in ((-0.2, "different words", table.histogram()), (0.2, "words", occurrences(table))):
        axes.bar(depths + shift, 100 * counts / max(1, counts.sum()), width=0.4, label=label)
    axes.set_xlabel(f"depth (blocks, of {table.num_layers})")
    axes.set_ylabel("share (%)")
    axes.set_title(f"depths of {len(table.depths):,} words by {table.options.estimator.replace('_', ' ')}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize="small")
    return figure
