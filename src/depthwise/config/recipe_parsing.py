"""From nested dictionaries to a recipe and back, with every mistake reported at once."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from depthwise.config.exit_training import RULES as EXIT_RULES
from depthwise.config.exit_training import ExitTrainingConfig
from depthwise.config.exit_training import without_effect as idle_exit_options
from depthwise.config.latent import GATE_MODES, idle_latent
from depthwise.config.latent import TRAINING_RULES as LATENT_RULES
from depthwise.config.masking import RULES as MASKING_RULES
from depthwise.config.masking import MaskingConfig, masking_problems
from depthwise.config.model import ModelConfig
from depthwise.config.parsing import (
    Findings,
    Rules,
    at_least,
    build,
    choice,
    finite,
    option_paths,
    option_problems,
    probability,
    seed,
    shown,
    type_message,
)
from depthwise.config.presets import preset, preset_names
from depthwise.config.recipe import (
    DEVICES,
    LABEL_KINDS,
    LANGUAGE_TOKENS,
    OF_MANY_FILES,
    ORIGINS,
    PRECISIONS,
    PRETRAINED,
    REPORTS,
    SELECTIONS,
    SEVERAL_REFERENCES,
    SIZES,
    TAG_SCHEMES,
    TASKS,
    DataConfig,
    Recipe,
    TokenizerConfig,
    TrainingConfig,
)
from depthwise.config.recipe_checks import (
    half_states_problems,
    language_pairs,
    rounds_problems,
    sides_of,
    without_effect,
)
from depthwise.config.teacher import RULES as TEACHER_RULES
from depthwise.config.teacher import TeacherConfig, teacher_problems
from depthwise.config.validation import parse_model
from depthwise.errors import ConfigError, Problem

OF_KINDS = ("optimizer", "schedule", "policy")
"""Mappings whose ``kind`` decides which options they have."""


def parse_recipe(options: Mapping[str, Any], source: str = "recipe") -> Recipe:
    """A recipe from nested dictionaries. Raises ``ConfigError`` with all problems, under the name ``source``."""
    findings = Findings()
    recipe: Recipe = build(Recipe, options, findings)
    if isinstance(recipe.model, Mapping):
        recipe = replace(recipe, model=_without_null_origins(recipe.model))
    single = [problem for problem in option_problems(recipe, RULES) if problem.option not in findings.unreliable]
    problems = [*findings.problems, *single]
    broken = {*findings.unreliable, *(problem.option for problem in problems)}
    problems += [problem for problem in _relation_problems(recipe, broken) if problem.option not in broken]
    if problems:
        raise ConfigError(source, problems)
    return recipe


def _without_null_origins(model: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in model.items() if name not in ORIGINS or value is not None}


def model_options(model: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a recipe's model: those of its preset, changed by those beside it."""
    beside = {name: value for name, value in model.items() if name not in ORIGINS}
    if "preset" not in model:
        return beside
    return merged(asdict(preset(model["preset"])), beside)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A nested dictionary with some leaves replaced; dictionaries on both sides are merged."""
    result = dict(base)
    for name, value in changes.items():
        old = result.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merged(_carried_over(name, old, value), value)
        result[name] = value
    return result


def _carried_over(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """What stays beside new options: nothing of another kind of optimiser or schedule, no other origin of a model."""
    if name in OF_KINDS and "kind" in old and "kind" in new and old["kind"] != new["kind"]:
        return {}
    if name == "model" and any(new.get(origin) is not None for origin in ORIGINS):
        return {option: value for option, value in old.items() if option not in ORIGINS}
    return old


def recipe_dict(recipe: Recipe) -> dict[str, Any]:
    """A recipe as nested dictionaries and lists, ready for YAML."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(item) for name, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, tuple | list) else value

    result = plain(asdict(recipe))
    assert isinstance(result, dict)
    return result


def _relation_problems(recipe: Recipe, broken: set[str]) -> Iterator[Problem]:
    training, data = recipe.training, recipe.data
    if isinstance(training, TrainingConfig):
        is_for_training = not isinstance(data, DataConfig) or data.train is not None
        if is_for_training and training.max_updates is None and training.max_epochs is None and "model" not in broken:
            yield from _endless(recipe)
        if training.select == "best" and isinstance(data, DataConfig) and data.valid is None and data.train:
            yield Problem("training.select", "best needs data.valid to choose by; give it, or choose last")
        yield from half_states_problems(training)
        for name in ("optimizer", "schedule"):
            if isinstance(given := getattr(training, name), Mapping) and "kind" not in given:
                yield Problem(f"training.{name}", f"has no kind; write {name}: {{kind: ..., ...}}")
    if isinstance(data, DataConfig):
        yield from rounds_problems(data)
        teacher = training.teacher if isinstance(training, TrainingConfig) else None
        if isinstance(teacher, TeacherConfig) and "training.teacher.temperature" not in broken:
            yield from teacher_problems(teacher, data.labels)
    if isinstance(data, DataConfig) and recipe.task not in OF_MANY_FILES:
        for split in ("train", "valid", "test"):
            if f"data.{split}" not in broken and len(files := getattr(data, split) or ()) > 2:
                message = f"{len(files)} files are given; a split is one file or one for each side"
                yield Problem(f"data.{split}", message)
    has_sides = recipe.task in ("translation", "summarization") and isinstance(data, DataConfig)
    if has_sides and (data.source is None) != (data.target is None):
        missing = "source" if data.source is None else "target"
        yield Problem(f"data.{missing}", "is missing; give both endings, or name both files of each split")
    if recipe.task in TASKS:
        yield from without_effect(recipe)
    if isinstance(recipe.tokenizer, TokenizerConfig) and recipe.tokenizer.path and recipe.tokenizer.codes:
        yield Problem("tokenizer.codes", "is given beside tokenizer.path; give one of them")
    if isinstance(recipe.masking, MaskingConfig):
        for problem in masking_problems(recipe.masking):
            yield Problem(f"masking.{problem.option}", problem.message)
    if isinstance(recipe.model, Mapping):
        yield from _model_problems(recipe)
        yield from _exit_training_problems(recipe, broken)
        if isinstance(training, TrainingConfig) and _is_whole(recipe.model):
            yield from idle_latent(training, model_options(recipe.model))


def _exit_training_problems(recipe: Recipe, broken: set[str]) -> Iterator[Problem]:
    """Problems of the section ``training.exits`` before all of the model is known."""
    training = recipe.training
    if not isinstance(training, TrainingConfig) or not isinstance(training.exits, ExitTrainingConfig):
        return
    if _is_whole(recipe.model) and model_options(recipe.model).get("exits") is None:
        yield Problem("training.exits", "has no effect on a model without exits; set model.exits, or remove it")
    elif not any(name.startswith("training.exits.") for name in broken):
        for problem in idle_exit_options(training.exits):
            yield Problem(f"training.exits.{problem.option}", problem.message)


def _is_whole(model: Mapping[str, Any]) -> bool:
    """Whether what the recipe does not say of its model is not said elsewhere either."""
    return PRETRAINED not in model and model.get("preset") in (None, *preset_names())


def _endless(recipe: Recipe) -> Iterator[Problem]:
    if "size" not in recipe.model:
        yield Problem("training.max_updates", "is missing, and so is max_epochs; say how long to train")


def _model_problems(recipe: Recipe) -> Iterator[Problem]:
    """Problems of the model before its vocabulary and, beside a size or another run, most of its options are known."""
    size = recipe.model.get("size")
    if size is not None and (message := type_message(size, str) or choice(SIZES, size)):
        yield Problem("model.size", message)
    given = [name for name in ORIGINS if name in recipe.model]
    if len(given) > 1:
        yield Problem(f"model.{given[1]}", f"is given beside model.{given[0]}; give one of them")
        return
    if PRETRAINED in given and not isinstance(recipe.model[PRETRAINED], str):
        yield Problem(f"model.{PRETRAINED}", f"expected the folder of a run, got {shown(recipe.model[PRETRAINED])}")
    if "preset" in given:
        name = recipe.model["preset"]
        if message := type_message(name, str) or choice(preset_names(), name):
            yield Problem("model.preset", message)
            return
    options = model_options(recipe.model)
    undecided = {"vocab_size", "source_vocab_size"}
    if size is not None or PRETRAINED in given:
        options = merged({side: {} for side in sides_of(recipe.task)}, options)
        undecided |= set(option_paths(ModelConfig)) - set(_given_paths(options))
    sides = list(_side_problems(recipe.task, options))
    yield from sides
    undecided |= {problem.option.removeprefix("model.") for problem in sides}
    try:
        parse_model({"vocab_size": 1, **options}, undecided=undecided, is_partial=PRETRAINED in given)
    except ConfigError as error:
        yield from (Problem(f"model.{problem.option}", problem.message) for problem in error.problems)


def _given_paths(options: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, value in options.items():
        yield f"{path}{name}"
        if isinstance(value, Mapping):
            yield from _given_paths(value, f"{path}{name}.")


_SIDES = {
    ("encoder", "decoder"): "an encoder and a decoder",
    ("encoder",): "an encoder alone",
    ("decoder",): "a decoder alone",
}


def _side_problems(task: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    """Sides that a task needs and does not have, or has and does not need."""
    needed = sides_of(task)
    for side in ("encoder", "decoder") if needed else ():
        if (options.get(side) is not None) != (side in needed):
            state, remedy = ("missing", "add one") if side in needed else ("given", "set it to null")
            yield Problem(f"model.{side}", f"is {state}, but the model of {task} has {_SIDES[needed]}; {remedy}")


def _above_zero(value: float) -> str | None:
    return None if value > 0 else f"{value} is too small; give a number above 0"


def _passes(value: float) -> str | None:
    return finite(value) or _above_zero(value)


def _not_empty(value: tuple[str, ...]) -> str | None:
    return None if value and all(value) else "is empty; give a path"


def _reports(value: tuple[str, ...]) -> str | None:
    return next((message for name in value if (message := choice(REPORTS, name))), None)


RULES: Rules = {
    "task": partial(choice, TASKS),
    "seed": seed,
    **dict.fromkeys(("train", "valid", "test", "text"), _not_empty),
    "tag_scheme": partial(choice, TAG_SCHEMES),
    **dict.fromkeys(("stride", "max_question_tokens", "max_answer_tokens"), partial(at_least, 1)),
    "num_texts": partial(at_least, 1),
    "labels": partial(choice, LABEL_KINDS),
    "form": partial(choice, ("blocks", "lines")),
    "empty_lines": partial(choice, ("keep", "skip")),
    "context": partial(at_least, 1),
    **MASKING_RULES,
    **EXIT_RULES,
    **LATENT_RULES,
    **TEACHER_RULES,
    "gates": partial(choice, GATE_MODES),
    "on_bad_line": partial(choice, ("fail", "skip")),
    "too_long": partial(choice, ("skip", "cut", "split")),
    "kind": partial(choice, ("bpe", "unigram", "word", "char", "byte")),
    "normalization": partial(choice, ("none", "nfc", "nfkc")),
    "precision": partial(choice, PRECISIONS),
    "device": partial(choice, DEVICES),
    "select": partial(choice, SELECTIONS),
    "report": _reports,
    "label_smoothing": probability,
    **dict.fromkeys(("depth_cost", "depth_information"), partial(at_least, 0)),
    "depth_target": partial(at_least, 1),
    **dict.fromkeys(("max_chars", "vocab_size", "max_updates", "batch_tokens", "batch_rows"), partial(at_least, 1)),
    **dict.fromkeys(
        ("accumulate", "log_every", "validate_every", "save_every", "patience", "average"), partial(at_least, 1)
    ),
    **dict.fromkeys(("threads", "num_beams"), partial(at_least, 1)),
    **dict.fromkeys(("max_tokens", "max_source_tokens", "max_target_tokens"), partial(at_least, 2)),
    "pairs": language_pairs,
    "temperature": _above_zero,
    "language_token": partial(choice, LANGUAGE_TOKENS),
    **dict.fromkeys(("lead_sentences", "turns"), partial(at_least, 1)),
    "several_references": partial(choice, SEVERAL_REFERENCES),
    **dict.fromkeys(("clip_norm", "workers", "max_extra", "no_repeat_ngram", "max_factor"), partial(at_least, 0)),
    "max_epochs": _passes,
    **dict.fromkeys(("length_penalty", "null_threshold"), finite),
}


def with_vocabulary(options: Mapping[str, Any], source_size: int, target_size: int) -> ModelConfig:
    """The model of a recipe, once it is known how many types its tokenizers have."""
    given = dict(options)
    if given.get("decoder") is None or source_size == target_size:
        given["source_vocab_size"] = None
    else:
        given["source_vocab_size"] = source_size
    given["vocab_size"] = target_size
    return parse_model(given, source="model")
