"""How deep tokens ran, sequence by sequence as the model saw them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

from depthwise.data import Row
from depthwise.shapes import Tensor
from depthwise.tasks.question_answering import QuestionRow
from depthwise.tasks.tagging import SentenceRow

Depths = Sequence[int]


def by_part(row: Row, depths: Depths) -> Iterator[Depths]:
    """The depths of an input, apart for every sequence of it that was run by itself: long inputs have several."""
    if isinstance(row, SentenceRow):
        lengths = [len(part.ids) for part in row.parts]
    elif isinstance(row, QuestionRow):
        lengths = [len(window.ids) for window in row.windows]
    else:
        lengths = [len(depths)]
    assert sum(lengths) == len(depths), "every token has a depth"
    begin = 0
    for length in lengths:
        yield depths[begin : begin + length]
        begin += length


@contextmanager
def recorded_depths(model: PreTrainedModel) -> Iterator[Callable[[], list[list[int]]]]:
    """Keeps the depths of all tokens that a model runs meanwhile; what it gives tells them, row by row."""
    kept: list[Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        kept.append(output.depths)

    hook = model.register_forward_hook(keep)
    try:
        yield lambda: [[depth for depth in row if depth] for batch in kept for row in batch.tolist()]
    finally:
        hook.remove()
