"""Lines in, lines out: one answer for every line, in order, with only a chunk of them in memory.

Whatever a line is like, it gets its line of output; what is wrong with it is said in a note and never ends the work.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from depthwise.data import Row
from depthwise.data.lines import BYTE_ORDER_MARK, BYTES_PER_CHARACTER
from depthwise.errors import DepthwiseError
from depthwise.evaluation.policies import is_of_sources
from depthwise.evaluation.predicting import predict_rows, score_rows
from depthwise.evaluation.results import one_line
from depthwise.evaluation.runs import Run

FIRST_BLOCK, LARGEST_BLOCK = 1 << 12, 1 << 19
"""Bytes that are read at once: few at first, so that there is something to see soon, then enough for full batches."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Line:
    """A line of input as text, and what had to be done to it, as the ends of sentences that begin with the line."""

    number: int
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reply:
    """The line of output for a line of input, and notes on the latter."""

    number: int
    text: str
    notes: tuple[str, ...] = ()


def read_chunks(read: Callable[[int], bytes], max_chars: int) -> Iterator[list[Line]]:
    """The lines of a stream, as many at a time as have arrived. ``read`` gives some bytes at once, or none at the end.

    Nothing longer than a line of ``max_chars`` and a block is held: the rest of an over-long line is passed over.
    """
    limit = BYTES_PER_CHARACTER * max_chars + len(BYTE_ORDER_MARK)
    size, number, begun, is_over = FIRST_BLOCK, 0, b"", False
    while block := read(size):
        size = min(2 * size, LARGEST_BLOCK)
        *ended, begun_next = block.split(b"\n")
        lines = []
        for raw in ended:
            number += 1
            lines.append(_line(number, begun + raw, max_chars, is_over or len(begun) + len(raw) > limit))
            begun, is_over = b"", False
        begun += begun_next
        if len(begun) > limit:
            begun, is_over = begun[:limit], True
        if lines:
            yield lines
    if begun:
        yield [_line(number + 1, begun, max_chars, is_over)]


def _line(number: int, raw: bytes, max_chars: int, is_over: bool) -> Line:
    notes = []
    if number == 1:
        raw = raw.removeprefix(BYTE_ORDER_MARK)
    raw = raw if is_over else raw.removesuffix(b"\r")
    if is_over:  # which may have been cut within a character
        raw = raw[: BYTES_PER_CHARACTER * max_chars]
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        text = raw.decode(errors="replace")
        if not (is_over and error.start >= len(raw) - BYTES_PER_CHARACTER):
            notes.append(f"has bytes that are no UTF-8, from byte {error.start + 1} on; they were replaced")
    if is_over or len(text) > max_chars:
        text = text[:max_chars]
        notes.append(f"is longer than data.max_chars={max_chars:,} characters and was cut there")
    return Line(number, text, tuple(notes))


def predict_lines(run: Run, chunks: Iterable[Sequence[Line]], *, depths: bool = False) -> Iterator[list[Reply]]:
    """For every chunk of lines its predictions; with ``depths``, behind a tab, how deep the tokens ran: those that were
    generated, or those of the source where the depth of the encoder is what is decided on."""

    def answer(rows: list[Row]) -> list[str]:
        found = predict_rows(run.task, run.engine, rows, shows_progress=False)
        texts = [one_line(prediction.text) for prediction in found]
        if not depths:
            return texts
        of_sources = is_of_sources(run.model, run.policy)
        ran = (prediction.source_depths if of_sources else prediction.depths for prediction in found)
        shown = (" ".join(map(str, each)) for each in ran)
        return [f"{text}\t{numbers}" for text, numbers in zip(texts, shown, strict=True)]

    return _replies(run, chunks, answer, with_output=False)


def score_lines(run: Run, chunks: Iterable[Sequence[Line]]) -> Iterator[list[Reply]]:
    """For every chunk of lines ``input<TAB>output``, or of texts alone, the log-probabilities of the outputs."""

    def answer(rows: list[Row]) -> list[str]:
        return [f"{log_prob:.6f}" for log_prob in score_rows(run.task, run.engine, rows)]

    return _replies(run, chunks, answer, with_output=True)


def _replies(
    run: Run, chunks: Iterable[Sequence[Line]], answer: Callable[[list[Row]], list[str]], *, with_output: bool
) -> Iterator[list[Reply]]:
    names = run.task.input_names[: run.task.num_conditions if with_output else run.task.num_inputs]
    for lines in chunks:
        prepared = [_columns(line, names, with_output=with_output) for line in lines]
        replies = [Reply(line.number, "", line.notes) for line, _ in prepared]
        askable = [(place, columns) for place, (_, columns) in enumerate(prepared) if columns is not None]
        for place, (text, notes) in zip(
            (place for place, _ in askable),
            _answered(run, [columns for _, columns in askable], answer, with_output=with_output),
            strict=True,
        ):
            replies[place] = replace(replies[place], text=text, notes=(*replies[place].notes, *notes))
        yield replies


def _columns(line: Line, names: tuple[str, ...], *, with_output: bool) -> tuple[Line, tuple[str, ...] | None]:
    """The texts of a line, or none and the reason why it has no answer."""
    if not line.text.strip():
        return line, None
    columns, wanted = tuple(line.text.split("\t")), len(names) + with_output
    if len(columns) != wanted:
        kinds = "<tab>".join([*names, *["output"] * with_output])
        note = f"has {len(columns)} of the {wanted} columns that are needed: {kinds}"
    elif not all(column.strip() for column in columns[: len(names)]):
        note = "has an empty text"
    else:
        return line, columns
    return replace(line, notes=(*line.notes, note)), None


def _answered(
    run: Run, columns: list[tuple[str, ...]], answer: Callable[[list[Row]], list[str]], *, with_output: bool
) -> list[tuple[str, tuple[str, ...]]]:
    """An answer to each, with notes. Where all together fail, each half is tried by itself."""
    if not columns:
        return []
    try:
        rows, notes = _rows(run, columns, with_output=with_output)
        return list(zip(answer(rows), notes, strict=True))
    except (DepthwiseError, torch.OutOfMemoryError) as error:
        if len(columns) == 1:
            return [("", (f"has no answer: {error}",))]
    half = len(columns) // 2
    halves = columns[:half], columns[half:]
    return [found for some in halves for found in _answered(run, some, answer, with_output=with_output)]


def _rows(run: Run, columns: list[tuple[str, ...]], *, with_output: bool) -> tuple[list[Row], list[tuple[str, ...]]]:
    """Rows that the model can take and one batch can hold, and notes on those that were cut for it."""
    task = run.task
    if with_output:
        whole = task.scored_rows([texts[:-1] for texts in columns], [texts[-1] for texts in columns])
    else:
        whole = task.whole_rows(columns)
    rows = [task.cut(row, task.recipe.evaluation.batch_tokens) for row in whole]
    notes: list[tuple[str, ...]] = []
    for before, after in zip(whole, rows, strict=True):
        if after is before:
            notes.append(())
        else:
            longest = max(len(ids) for ids in before.texts)
            kept = max(len(ids) for ids in after.texts)
            notes.append((f"has {longest:,} tokens and was cut to {kept:,}",))
    return rows, notes
