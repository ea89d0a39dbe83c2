"""Sizes for data and a machine that nobody has seen before.

A recipe whose model has a ``size`` leaves its options open. The more examples there are, the larger the model that
learns from them without learning them by heart, and the fewer passes it needs; without a GPU it must stay small enough
to be trained in minutes. Whatever the recipe or the command line says explicitly stands.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

import torch

from depthwise.config import GENERATING, Recipe, merged


@dataclass(frozen=True)
class Facts:
    """What is known of the training data before any work is done."""

    num_examples: int
    mean_chars: float
    """Characters per example, all its texts together."""


def sized(recipe: Recipe, facts: Facts) -> Recipe:
    """The recipe with its open sizes filled in."""
    recipe = _with_vocabulary_size(recipe, facts)
    if "size" not in recipe.model:
        return recipe
    size = _size(facts) if recipe.model["size"] == "auto" else recipe.model["size"]
    given = {name: value for name, value in recipe.model.items() if name != "size"}
    training = recipe.training
    if training.max_updates is None and training.max_epochs is None:
        training = replace(training, max_epochs=_EPOCHS[size])
    return replace(recipe, model=merged(_model(recipe.task, size), given), training=training)


_EPOCHS = {"tiny": 30.0, "small": 20.0, "base": 15.0}
_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "num_layers": 2, "num_heads": 4, "ffn_width": 256},
    "small": {"width": 256, "num_layers": 4, "num_heads": 4, "ffn_width": 512},
    "base": {"width": 512, "num_layers": 6, "num_heads": 8, "ffn_width": 2048},
}


def _size(facts: Facts) -> str:
    if not torch.cuda.is_available():
        return "tiny" if facts.num_examples < 50_000 or (os.cpu_count() or 1) < 16 else "small"
    return "tiny" if facts.num_examples < 10_000 else "small" if facts.num_examples < 200_000 else "base"


def _model(task: str, size: str) -> dict[str, Any]:
    stack = {name: value for name, value in _SIZES[size].items() if name != "width"}
    stack |= {"mixer": "dynamicconv", "kernel_sizes": [3, 7, 15, 31, 31, 31][: stack["num_layers"]], "glu": True}
    model = {"width": _SIZES[size]["width"], "encoder": {**stack, "norm": "pre", "dropout": 0.2}}
    if task in GENERATING:
        model["decoder"] = dict(model["encoder"])
    return model


def _with_vocabulary_size(recipe: Recipe, facts: Facts) -> Recipe:
    """A type should occur often enough to be learned: one for every 25 words or so, within limits."""
    if recipe.tokenizer.vocab_size is not None:
        return recipe
    num_words = facts.num_examples * facts.mean_chars / 6
    vocab_size = int(min(32_000, max(1_000, num_words / 25)))
    return replace(recipe, tokenizer=replace(recipe.tokenizer, vocab_size=vocab_size))
