"""What options of single tasks demand of a recipe."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from depthwise.config.parsing import shown
from depthwise.config.recipe import TASKS, DataConfig, TrainingConfig
from depthwise.errors import Problem

GENERATING = ("translation", "multilingual_translation", "summarization")
"""Tasks with a source and a target."""
ONLY_FOR = {
    **dict.fromkeys(
        (
            "data.pairs",
            "data.temperature",
            "data.rounds",
            "data.mixed",
            "tokenizer.language_token",
            "tokenizer.languages",
            "generation.target",
        ),
        ("multilingual_translation",),
    ),
    **dict.fromkeys(("data.max_source_tokens", "data.max_target_tokens"), GENERATING),
    **dict.fromkeys(("data.word_column", "data.tag_column", "data.tag_scheme"), ("tagging",)),
    **dict.fromkeys(
        (
            *("data.stride", "data.max_question_tokens", "data.unanswerable"),
            *("generation.max_answer_tokens", "generation.null_threshold"),
        ),
        ("question_answering",),
    ),
    **dict.fromkeys(("data.labels", "data.num_texts"), ("text_classification",)),
    "training.teacher": ("text_classification", "tagging"),
    "tokenizer.first_token": (
        *("text_classification", "tagging", "question_answering"),
        "masked_language_modeling",
    ),
    **dict.fromkeys(("data.form", "evaluation.context"), ("language_modeling",)),
    "data.empty_lines": ("language_modeling", "masked_language_modeling"),
    **dict.fromkeys(("evaluation.lead_sentences", "evaluation.several_references"), ("summarization",)),
}
"""The tasks of options that have no effect on others."""


def sides_of(task: str) -> tuple[str, ...]:
    """The sides that the model of a task has; none if there is no such task."""
    if task not in TASKS:
        return ()
    if task in GENERATING:
        return ("encoder", "decoder")
    return ("decoder",) if task == "language_modeling" else ("encoder",)


def without_effect(recipe: Any) -> Iterator[Problem]:
    """Options of other tasks that are given, and not as they would be without that."""
    for name, tasks in ONLY_FOR.items():
        section, option = name.split(".")
        options = getattr(recipe, section)
        if recipe.task in tasks or not is_dataclass(options):
            continue
        default = next(field.default for field in fields(options) if field.name == option)
        if getattr(options, option) != default:
            yield Problem(name, f"has no effect on {recipe.task}, only on {', '.join(tasks)}; leave it out")


def rounds_problems(data: DataConfig) -> Iterator[Problem]:
    """Rounds have one batch of each pair, whatever its share."""
    if data.rounds and data.temperature != 1:
        yield Problem("data.temperature", "has no effect with data.rounds, where all pairs are drawn alike; remove it")
    if data.rounds and data.mixed:
        yield Problem("data.mixed", "puts all pairs into every batch, and data.rounds one; give one of them")


def half_states_problems(training: TrainingConfig) -> Iterator[Problem]:
    """What passes in half precision need beside them."""
    if training.half_states and not training.graphs:
        yield Problem("training.half_states", "needs recorded passes; set training.graphs=true, or leave it out")
    if training.half_states and training.precision == "fp32":
        yield Problem("training.half_states", "is not for fp32; set training.precision=fp16 or bf16, or leave it out")


def language_pairs(value: tuple[str, ...]) -> str | None:
    """Directions such as ``en-de``, each once."""
    for text in value:
        source, _, target = text.partition("-")
        if not source or not target or "-" in target:
            return f"{shown(text)} is no pair of languages; write it as en-de"
    return None if value and len(set(value)) == len(value) else "names no pair, or one twice; name each once"
