"""What goes into a task and comes out of it."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from depthwise.data import LineReport
from depthwise.shapes import Float, Tensor


class Examples(Protocol):
    """The examples of a split, ready to be collated: a ``TokenStore``, or what a task makes of one.

    ``examples[~i]`` is example i to be ignored, which fills a step that has none left for some process.
    """

    @property
    def report(self) -> LineReport:
        """What was left out on the way."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class Losses(NamedTuple):
    """``loss`` is what training minimises: a sum over items, divided by how many there are in the whole update.

    ``totals`` are sums over the items of this batch alone, without gradients, that metrics of validation are made of.
    """

    loss: Float[Tensor, ""]
    totals: dict[str, Float[Tensor, ""]]


@dataclass(frozen=True)
class Prediction:
    """What a model says about one input: as text, and how deep its tokens ran.

    The tokens are those of the text where it was generated, else those of the input. ``log_prob`` is there where it
    costs nothing. ``num_steps`` says after how many steps the search of the whole batch had ended; where that is less
    than the limit of the input's own length, the limit had no part in the text. ``token_ids`` are there where the text
    was generated from a source: one for every depth. ``source_depths`` are those of the tokens of a source, where they
    were asked for.
    """

    text: str
    log_prob: float | None = None
    depths: tuple[int, ...] = ()
    num_steps: int | None = None
    token_ids: tuple[int, ...] = ()
    source_depths: tuple[int, ...] = ()
