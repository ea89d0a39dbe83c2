"""Sizes for data and a machine that nobody has seen before.

A recipe whose model has a ``size`` leaves options open, and they are filled in here: vocabulary, model, batches,
learning rate, passes and dropout. Without a GPU a budget of tokens keeps training to minutes: small sets are gone
through often, large ones only as far as the budget goes. Whatever the recipe or the command line says explicitly
stands. The numbers were found by trying; ``docs/results.md`` says what comes of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import torch

from depthwise.config import GENERATING, Recipe, TrainingConfig, merged

KERNELS = (3, 7, 15, 31)
"""Kernel widths of the first layers; later ones have the last."""
WITHOUT_KERNELS = ("attention", "average")
CHARS_PER_TOKEN = 4.5
CHARS_PER_WORD = 6
LONGEST_WORDS = 14
"""Mean length of what stands between blanks, in characters, up to which that is taken for words."""
FEWEST_UPDATES = 600
MOST_PASSES = 100
WORDS_PER_ROOT_WORD = 35
"""Words of a vocabulary of words for each square root of the number of running words: all but the rarest."""


@dataclass(frozen=True)
class Facts:
    """What is known of the training data before any work is done."""

    num_examples: int
    mean_chars: float
    """Characters per example, all its texts together."""
    chars_per_word: float = 6.0
    """Characters per stretch without blanks, the blank behind it included."""

    @property
    def has_words(self) -> bool:
        """Whether blanks separate words, as they do not in Chinese, Japanese or Thai."""
        return self.chars_per_word < LONGEST_WORDS

    @property
    def num_words(self) -> float:
        return self.num_examples * self.mean_chars / CHARS_PER_WORD

    def tokens_of_a_text(self, num_texts: int) -> float:
        """About how many tokens each of so many texts of an example has."""
        return self.mean_chars / num_texts / CHARS_PER_TOKEN + 2


@dataclass(frozen=True)
class Machine:
    """What is there to train on."""

    has_gpu: bool
    num_threads: int

    @classmethod
    def found(cls, device: str) -> "Machine":
        return cls(device != "cpu" and torch.cuda.is_available(), torch.get_num_threads())

    @property
    def speed(self) -> float:
        """How much more may be computed than on two cores; small models gain little from more than eight."""
        return 30.0 if self.has_gpu else min(4.0, max(0.5, self.num_threads / 2))


@dataclass(frozen=True)
class Habits:
    """What suits a task: how large its vocabulary and batches are, how often and at which rate it learns."""

    sizes: dict[str, dict[str, Any]]
    types_per_root_word: float
    """Types of the vocabulary for each square root of the number of words."""
    most_types: int
    """Most types without a GPU."""
    budget: float
    """Tokens of training on two cores."""
    most_passes: float
    rate: float
    """Peak learning rate at width 128."""
    longest: int
    """Most tokens of a text without a GPU; twice as many with one."""


LANGUAGE = Habits(
    sizes={
        "tiny": {"width": 128, "num_layers": 2, "ffn_width": 256, "num_heads": 4, "mixer": "dynamicconv"},
        "small": {"width": 256, "num_layers": 4, "ffn_width": 1024, "num_heads": 4, "mixer": "dynamicconv"},
        "base": {"width": 512, "num_layers": 6, "ffn_width": 2048, "num_heads": 8, "mixer": "dynamicconv"},
    },
    types_per_root_word=3,
    most_types=8_000,
    budget=2e6,
    most_passes=10,
    rate=2e-3,
    longest=256,
)
HABITS = {
    "language_modeling": LANGUAGE,
    "masked_language_modeling": LANGUAGE,
    "text_classification": Habits(
        sizes={
            "tiny": {"width": 128, "num_layers": 2, "ffn_width": 256, "num_heads": 4, "mixer": "lightconv"},
            "small": {"width": 256, "num_layers": 3, "ffn_width": 512, "num_heads": 4, "mixer": "dynamicconv"},
            "base": {"width": 512, "num_layers": 4, "ffn_width": 1024, "num_heads": 8, "mixer": "dynamicconv"},
        },
        types_per_root_word=15,
        most_types=16_000,
        budget=6e6,
        most_passes=16,
        rate=1e-3,
        longest=256,
    ),
    "translation": Habits(
        sizes={
            "tiny": {"width": 192, "num_layers": 3, "ffn_width": 384, "num_heads": 4, "mixer": "lightconv"},
            "small": {"width": 256, "num_layers": 4, "ffn_width": 1024, "num_heads": 4, "mixer": "dynamicconv"},
            "base": {"width": 512, "num_layers": 6, "ffn_width": 2048, "num_heads": 8, "mixer": "dynamicconv"},
        },
        types_per_root_word=8,
        most_types=8_000,
        budget=6e6,
        most_passes=40,
        rate=2.5e-3,
        longest=256,
    ),
}


def habits_of(task: str) -> Habits:
    """What suits a task: tasks that write text are like translation, those that judge it like classification."""
    return HABITS.get(task) or HABITS["translation" if task in GENERATING else "text_classification"]


def sized(recipe: Recipe, facts: Facts) -> Recipe:
    """The recipe with its open sizes filled in."""
    machine = Machine.found(recipe.training.device)
    recipe = _with_vocabulary(_with_kind(recipe, facts), facts, machine)
    if "size" not in recipe.model:
        return recipe
    habits = habits_of(recipe.task)
    size = recipe.model["size"]
    if size == "auto":
        size = _size(recipe.task, facts, machine)
    num_sides = 2 if recipe.task in GENERATING else 1
    training = _with_length(_with_batches(recipe, facts, machine), facts, num_sides, habits, machine)
    given = {name: value for name, value in recipe.model.items() if name != "size"}
    model = merged(_model(recipe.task, size, given, training.max_epochs, machine), given)
    if "lr" not in training.optimizer:
        rate = habits.rate * sqrt(128 / model["width"])
        training = replace(training, optimizer={**training.optimizer, "lr": float(f"{rate:.2g}")})
    return replace(recipe, model=model, training=training)


def passes(num_tokens: float, updates_per_pass: float, habits: Habits, machine: Machine) -> float:
    """How often the data is gone through.

    As often as the budget allows, up to three times even for three times the budget, but no more often than it does
    good, unless the set is so small that there would be too few updates.
    """
    budget = habits.budget * machine.speed
    wanted = max(budget / num_tokens, min(3.0, 3 * budget / num_tokens))
    wanted = min(wanted, max(habits.most_passes, FEWEST_UPDATES / updates_per_pass), MOST_PASSES)
    return float(round(wanted)) if wanted >= 3 else float(f"{wanted:.2g}")


def _size(task: str, facts: Facts, machine: Machine) -> str:
    """A larger model only where there is data that it learns more from, and a GPU."""
    if not machine.has_gpu:
        return "tiny"
    if task in GENERATING:
        return "small" if facts.num_examples < 200_000 else "base"
    return "tiny" if facts.num_examples < 50_000 else "small" if facts.num_examples < 1_000_000 else "base"


def _model(
    task: str, size: str, given: Mapping[str, Any], num_passes: float | None, machine: Machine
) -> dict[str, Any]:
    """A model of this size; the more often it sees the same examples, the more dropout.

    Classifiers have no positions: convolutions know what stands beside what, and that is all that short texts need.
    """
    habits = habits_of(task)
    dropout = 0.3 if num_passes is None or num_passes > 10 else 0.2 if num_passes > 4 else 0.1
    stack = {**habits.sizes[size], "norm": "pre", "dropout": dropout}
    stack["max_positions"] = habits.longest * (2 if machine.has_gpu else 1)
    model: dict[str, Any] = {"width": stack.pop("width")}
    if task == "text_classification":
        stack["positions"] = "none"
    both = ("encoder", "decoder") if task in GENERATING else ("encoder",)
    for side in ("decoder",) if task == "language_modeling" else both:
        model[side] = _with_kernels(stack, given.get(side) or {})
    return model


def _with_kernels(stack: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A kernel for each layer that there will be, where the mixer has kernels."""
    mixer, num_layers = given.get("mixer", stack["mixer"]), given.get("num_layers", stack["num_layers"])
    if mixer in WITHOUT_KERNELS:
        return stack
    stack = {**stack, "kernel_sizes": [*KERNELS, *[KERNELS[-1]] * num_layers][:num_layers]}
    return {**stack, "glu": True} if mixer in ("lightconv", "dynamicconv") else stack


def _with_kind(recipe: Recipe, facts: Facts) -> Recipe:
    """Small classifiers learn more from whole words than from pieces of them."""
    if recipe.tokenizer.kind is not None:
        return recipe
    is_word = recipe.task == "text_classification" and "size" in recipe.model and facts.has_words
    return replace(recipe, tokenizer=replace(recipe.tokenizer, kind="word" if is_word else "bpe"))


def _with_vocabulary(recipe: Recipe, facts: Facts, machine: Machine) -> Recipe:
    """More types for more words, but fewer occasions to learn each of them if there are too many."""
    if recipe.tokenizer.vocab_size is not None:
        return recipe
    habits = habits_of(recipe.task)
    most = 32_000 if machine.has_gpu else habits.most_types
    per_root = WORDS_PER_ROOT_WORD if recipe.tokenizer.kind == "word" else habits.types_per_root_word
    vocab_size = int(min(most, max(500, per_root * sqrt(facts.num_words))))
    return replace(recipe, tokenizer=replace(recipe.tokenizer, vocab_size=vocab_size))


def _with_batches(recipe: Recipe, facts: Facts, machine: Machine) -> TrainingConfig:
    """Batches so small that even a small set gives an epoch of some dozens of updates."""
    training = recipe.training
    if training.batch_tokens is not None or training.batch_rows is not None:
        return training
    if habits_of(recipe.task) is LANGUAGE:
        return replace(training, batch_tokens=4096)
    if recipe.task in GENERATING:
        most = 4096 if machine.has_gpu else 2048
        return replace(training, batch_tokens=_rounded(facts.num_examples * facts.tokens_of_a_text(2) / 75, 256, most))
    return replace(training, batch_rows=_rounded(facts.num_examples / 60, 8, 32), batch_tokens=16_384)


def _rounded(value: float, least: int, most: int) -> int:
    """The power of two below a value, within limits that are such powers."""
    power = least
    while power * 2 <= min(value, most):
        power *= 2
    return power


def _with_length(
    training: TrainingConfig, facts: Facts, num_sides: int, habits: Habits, machine: Machine
) -> TrainingConfig:
    """How long to train, and ten to thirty validations where one for each pass would be too few or too many.

    The budget of a batch is one of each side.
    """
    num_tokens = facts.num_examples * min(2 * habits.longest, facts.tokens_of_a_text(1))
    if training.batch_rows:
        updates_per_pass = facts.num_examples / training.batch_rows
    else:
        assert training.batch_tokens is not None
        updates_per_pass = num_tokens / num_sides / training.batch_tokens
    updates_per_pass /= training.accumulate
    if training.max_updates is None and training.max_epochs is None:
        training = replace(training, max_epochs=passes(num_tokens, max(1, updates_per_pass), habits, machine))
    if training.validate_every is None and training.max_epochs is not None:
        num_validations = min(30, max(10, training.max_epochs))
        if not 5 <= training.max_epochs <= 30:
            every = max(1, round(updates_per_pass * training.max_epochs / num_validations))
            training = replace(training, validate_every=every)
    return training
