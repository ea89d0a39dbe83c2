"""Heads of attention that were pruned, as plain data: the option ``kept_heads`` of an encoder.

``depthwise.models.head_pruning`` says which ones go.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from depthwise.errors import Problem

if TYPE_CHECKING:
    from depthwise.config.checks import View


def kept_heads_rule(heads: tuple[int, ...]) -> str | None:
    """What the option demands by itself."""
    return None if heads and min(heads) >= 1 else f"{list(heads)} leaves a block no head; give at least 1 for each"


def kept_heads_fit(stack: "View", model: "View", centred: bool) -> Iterator[Problem]:
    """Some of the heads of self-attention are left, in every block of an encoder."""
    kept = stack.kept_heads
    if kept is None:
        return
    if stack.mixer != "attention":
        yield stack.problem("kept_heads", f"has no effect with mixer {stack.mixer}, only with attention; remove it")
    elif not centred:
        yield stack.problem("kept_heads", "is for encoders, whose heads can be pruned; remove it")
    if max(kept) > stack.num_heads:
        yield stack.problem("kept_heads", f"{max(kept)} are more than num_heads {stack.num_heads}; lower it")
    blocks = stack.num_layers
    if stack.groups is not None:
        blocks = stack.groups
    elif stack.shared_layers is not None:
        blocks = len(set(stack.shared_layers))
    if len(kept) not in (1, blocks):
        yield stack.problem("kept_heads", f"{len(kept)} numbers for {blocks} blocks; give one for all or one for each")
