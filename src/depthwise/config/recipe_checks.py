"""What options of single tasks demand of a recipe."""

from collections.abc import Iterator
from typing import Any

from depthwise.config.parsing import shown
from depthwise.errors import Problem

GENERATING = ("translation", "multilingual_translation", "summarization")
"""Tasks with a source and a target."""
ONLY_FOR = {
    "data.pairs": ("multilingual_translation",),
    "generation.target": ("multilingual_translation",),
    "data.max_source_tokens": GENERATING,
    "data.max_target_tokens": GENERATING,
}
"""The tasks of options that have no effect on others."""


def without_effect(recipe: Any) -> Iterator[Problem]:
    """Options that are given but belong to other tasks."""
    for name, tasks in ONLY_FOR.items():
        section, _, option = name.partition(".")
        if recipe.task not in tasks and getattr(getattr(recipe, section), option, None) is not None:
            yield Problem(name, f"has no effect on {recipe.task}, only on {', '.join(tasks)}; leave it out")


def language_pairs(value: tuple[str, ...]) -> str | None:
    """Directions such as ``en-de``, each once."""
    for text in value:
        source, _, target = text.partition("-")
        if not source or not target or "-" in target:
            return f"{shown(text)} is no pair of languages; write it as en-de"
    return None if value and len(set(value)) == len(value) else "names no pair, or one twice; name each once"
