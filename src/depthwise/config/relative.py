"""Where tokens stand to each other, as plain data: the section ``relative`` of an encoder of attention.

``depthwise.kernels.relative`` says what comes of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from depthwise.config.parsing import Rules, at_least, choice
from depthwise.errors import Problem

if TYPE_CHECKING:
    from depthwise.config.checks import View

INDEXINGS = ("deberta", "literal")


@dataclass(frozen=True, kw_only=True)
class RelativeConfig:
    """Vectors r of distances, which queries and keys are multiplied with beside each other:

    score(i, j) = (q_i·k_j + q_i·r[i − j] + k_j·r[j − i]) / √d. One table of them serves all heads and layers.
    """

    max_distance: int = 128
    """Greater distances count as this one."""
    content_to_position: bool = True
    """The term of queries."""
    position_to_content: bool = True
    """The term of keys."""
    indexing: str = "deberta"
    """The distance that the term of keys looks up: as seen from the key, r[j − i] (``deberta``, He et al. 2021), or the
    same as that of queries, r[i − j] (``literal``, as printed for ALBERTa)."""
    scale_terms: bool = False
    """Divide scores by √(s·d), where s is the number of terms (He et al. 2021), and not by √d."""

    @property
    def num_terms(self) -> int:
        """How many products make a score."""
        return 1 + self.content_to_position + self.position_to_content


RULES: Rules = {"max_distance": partial(at_least, 1), "indexing": partial(choice, INDEXINGS)}
"""What each option demands by itself."""


def distances_serve(stack: "View", model: "View", centred: bool) -> Iterator[Problem]:
    """Relative positions are part of the scores of attention, and of nothing that decodes step by step."""
    relative = stack.relative
    if relative is None:
        return
    if stack.mixer != "attention":
        yield stack.problem("relative", f"has no effect with mixer {stack.mixer}, only with attention; remove it")
    elif not centred:
        yield stack.problem("relative", "is for encoders; remove it, decoders have positions of their own")
    if not relative.content_to_position and not relative.position_to_content:
        message = "is off and so is content_to_position; switch one on, or remove relative"
        yield relative.problem("position_to_content", message)
    elif not relative.position_to_content and relative.indexing != RelativeConfig.indexing:
        yield relative.problem("indexing", "has no effect without position_to_content; remove it")
