"""How deep tokens ran, sequence by sequence as the model saw them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import compress
from typing import Any

from torch import nn
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


@contextmanager
def recorded_sources(encoder: nn.Module) -> Iterator[Callable[[Iterable[int]], tuple[int, ...]]]:
    """Keeps the depths of all sources that an encoder reads meanwhile; what it gives tells those of one by its ids.

    Batches may be parted and put in another order on their way there.
    """
    kept: list[tuple[Tensor, Tensor]] = []

    def keep(_: Any, given: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        kept.append((given[0] if given else options["input_ids"], output.depths))

    @cache
    def known() -> dict[tuple[int, ...], tuple[int, ...]]:
        found = dict[tuple[int, ...], tuple[int, ...]]()
        for ids, depths in kept:
            for tokens, ran in zip(ids.tolist(), depths.tolist(), strict=True):
                found[tuple(compress(tokens, ran))] = tuple(filter(None, ran))
        return found

    hook = encoder.register_forward_hook(keep, with_kwargs=True)
    try:
        yield lambda ids: known()[tuple(int(token) for token in ids)]
    finally:
        hook.remove()
