"""How lossless decoding drafts."""

from dataclasses import dataclass

NUM_DRAFTED = 4
"""Tokens of a draft, unless told otherwise."""


@dataclass(frozen=True)
class Drafting:
    """How to draft: at the exit of which depth, and how many tokens at a time."""

    depth: int
    num_drafted: int = NUM_DRAFTED
