"""From a recipe, or from the folder of a run, to a task."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from depthwise.config import PRETRAINED, DataConfig, Recipe, as_dict, load_recipe, merged
from depthwise.data import (
    Corpus,
    LineReport,
    LineRules,
    TokenizerOptions,
    Tokenizers,
    load_tokenizers,
    tokenizer_from_codes,
    trained_tokenizers,
)
from depthwise.errors import CheckpointError, ConfigError, Problem
from depthwise.tasks.base import Task
from depthwise.tasks.language_modeling import LanguageModeling
from depthwise.tasks.masked_language_modeling import MaskedLanguageModeling
from depthwise.tasks.multilingual import MultilingualTranslation
from depthwise.tasks.pair_sources import pair_corpora
from depthwise.tasks.question_answering import QuestionAnswering
from depthwise.tasks.run_folder import cache_folder, run_config
from depthwise.tasks.sequence_to_sequence import SequenceToSequence
from depthwise.tasks.sizing import Facts, sized
from depthwise.tasks.sources import labelled, pairs, questions, running_text, summaries, tagged
from depthwise.tasks.summarization import Summarization
from depthwise.tasks.tagging import Tagging
from depthwise.tasks.text_classification import TextClassification
from depthwise.tasks.translation import Translation
from depthwise.tasks.word_depths import with_table_of

TASKS: dict[str, type[Task]] = {
    task.kind: task
    for task in (
        *(Translation, MultilingualTranslation, Summarization),
        *(TextClassification, Tagging, QuestionAnswering),
        *(LanguageModeling, MaskedLanguageModeling),
    )
}
READERS: dict[str, Callable[[DataConfig, tuple[str, ...]], Corpus]] = {
    Translation.kind: pairs,
    TextClassification.kind: labelled,
    MultilingualTranslation.kind: pair_corpora,
    Summarization.kind: summaries,
    Tagging.kind: tagged,
    QuestionAnswering.kind: questions,
    LanguageModeling.kind: running_text,
    MaskedLanguageModeling.kind: running_text,
}
"""How the training data of each task is read before the task is there."""
RECIPE = "recipe.yaml"
BEGINNINGS = (("structure", "last_bias"), ("latent", "init"))
"""Sections of a model's options, and what in them is about new weights alone."""
SAMPLE = 2000
"""How many examples are looked at to judge how long texts are."""


def open_task(recipe: Recipe, folder: Path) -> Task:
    """The task of a recipe for a run in ``folder``.

    What the recipe leaves open is decided by the training data: sizes, and a tokenizer that is trained on it. Where the
    folder has a ``recipe.yaml``, all of that is decided already: this is then the recipe, and the tokenizers are there.
    """
    if (folder / RECIPE).is_file():
        return with_table_of(TASKS[recipe.task](recipe, load_tokenizers(folder)), folder)
    if recipe.training.teacher is not None:
        run_config(Path(recipe.training.teacher.run))  # says now, not when all data is read, that there is none
    corpus = _training_corpus(recipe)
    recipe = sized(_with_pretrained(recipe), _facts(corpus, recipe))
    return with_table_of(TASKS[recipe.task](recipe, _new_tokenizers(corpus, recipe)), None)


def load_task(folder: Path, recipe: Recipe | None = None) -> Task:
    """The task of a finished run. Without a recipe, as for imported models, its kind follows from the model."""
    config = run_config(folder)
    recipe = recipe or run_recipe(folder)
    tokenizers = load_tokenizers(folder)
    task = TASKS[recipe.task]
    if config.architectures and config.architectures[0] != task.model_class.__name__:
        raise CheckpointError(
            f"{folder} holds a {config.architectures[0]}, which does no {recipe.task}; give a run of that task"
        )
    if issubclass(task, TextClassification | Tagging):
        assert config.id2label is not None
        by_number = {int(number): name for number, name in config.id2label.items()}
        names = tuple(by_number[number] for number in range(len(by_number)))
        return with_table_of(task(recipe, tokenizers, names), folder)
    if issubclass(task, SequenceToSequence):
        return task(recipe, tokenizers, config.decoder_start_token_id)
    return with_table_of(task(recipe, tokenizers), folder)


def run_recipe(folder: Path) -> Recipe:
    """The recipe of a run, or one with nothing but the task and the model of an imported one."""
    if (folder / RECIPE).is_file():
        return load_recipe(folder / RECIPE)
    config = run_config(folder)
    by_model = {task.model_class.__name__: task.kind for task in reversed(TASKS.values())}  # the first of several
    name = (config.architectures or [""])[0]
    if name not in by_model:
        raise CheckpointError(
            f"{folder} holds a {name or 'model without a head'}, for which there is no task; give another run"
        )
    return Recipe(task=by_model[name], model=as_dict(config.options))


def _with_pretrained(recipe: Recipe) -> Recipe:
    """The options and the tokenizer of the run that a model is taken from, as far as the recipe leaves them open."""
    if PRETRAINED not in recipe.model:
        return recipe
    folder = recipe.model[PRETRAINED]
    begun = as_dict(run_config(Path(folder)).options)
    model = merged(begun, recipe.model)
    _check_beginnings(begun, model, folder)
    tokenizer = replace(recipe.tokenizer, path=recipe.tokenizer.path or folder, codes=None)
    return replace(recipe, model=model, tokenizer=tokenizer)


def _check_beginnings(begun: Mapping[str, Any], model: Mapping[str, Any], folder: str) -> None:
    """Raises an error where options of new predictors or gates differ from those of a run that has learned its own."""
    problems = [
        Problem(f"model.{section}.{option}", f"has no effect on what {folder} has learned already; remove it")
        for section, option in BEGINNINGS
        if begun.get(section) and model.get(section)
        if _numbers(begun[section][option]) != _numbers(model[section][option])
    ]
    if problems:
        raise ConfigError("recipe", problems)


def _numbers(value: Any) -> list[Any]:
    """One number and a list of it are the same."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _training_corpus(recipe: Recipe) -> Corpus:
    if not recipe.data.train:
        raise ConfigError("recipe", [Problem("data.train", "is missing; add data.train=FILE")])
    return READERS[recipe.task](recipe.data, recipe.data.train)


def _facts(corpus: Corpus, recipe: Recipe) -> Facts:
    """How much data there is, its length judged by the first examples."""
    report = LineReport(LineRules("skip", recipe.data.max_chars))
    sample = list(islice(corpus.examples(report), SAMPLE))
    texts = [text for example in sample for text in example.texts]
    num_chars, num_words = sum(map(len, texts)), sum(len(text.split()) for text in texts)
    return Facts(
        num_examples=corpus.num_lines(),
        mean_chars=num_chars / max(1, len(sample)),
        chars_per_word=(num_chars + len(texts)) / max(1, num_words),
    )


def _new_tokenizers(corpus: Corpus, recipe: Recipe) -> Tokenizers:
    """Those that the recipe names, or trained on the corpus."""
    options, rules = recipe.tokenizer, LineRules(recipe.data.on_bad_line, recipe.data.max_chars)
    if options.path is not None:
        return load_tokenizers(Path(options.path))
    joint = options.joint or not issubclass(TASKS[recipe.task], SequenceToSequence)
    if options.codes is not None:
        sides = [slice(None)] if joint else [slice(0, 1), slice(1, 2)]
        made = [tokenizer_from_codes(Path(options.codes), _texts(corpus, rules, side)) for side in sides]
        return Tokenizers(made[0], made[-1])
    assert options.vocab_size is not None, "sized() decides it"
    assert options.kind is not None, "sized() decides it"
    return trained_tokenizers(
        corpus,
        TokenizerOptions(
            kind=options.kind,
            vocab_size=options.vocab_size,
            byte_fallback=options.byte_fallback,
            pretokenized=options.pretokenized,
            lowercase=options.lowercase,
            normalization=options.normalization,
            mask_token=recipe.task == MaskedLanguageModeling.kind,
            first_token=options.first_token,
        ),
        rules,
        joint=joint,
        cache=cache_folder(recipe.data.cache),
    )


def _texts(corpus: Corpus, rules: LineRules, side: slice) -> Iterator[str]:
    return (text for example in corpus.examples(LineReport(rules)) for text in example.texts[side])
