"""What a run is made of, as plain data: task, data, tokenizer, model, masking, training, search and evaluation.

A recipe is a YAML file with these sections (``recipes`` finds and reads it). What it leaves out has the default that
stands here; where that is none, the task, the data or the machine decides, and the run's own ``recipe.yaml`` says how.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from depthwise.config.masking import RULES as MASKING_RULES
from depthwise.config.masking import MaskingConfig
from depthwise.config.model import ModelConfig
from depthwise.config.parsing import Findings, Rules, at_least, build, choice, option_problems, probability, shown
from depthwise.config.presets import preset
from depthwise.config.validation import parse_model
from depthwise.errors import ConfigError, Problem

TASKS = ("translation", "text_classification", "language_modeling", "masked_language_modeling")
LABEL_KINDS = ("class", "number")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
DEVICES = ("auto", "cpu", "cuda")
SELECTIONS = ("last", "best")
REPORTS = ("tensorboard", "wandb")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where examples come from, and what becomes of those that are not as they should be.

    A split is one file (``.tsv``, ``.jsonl``; for language models plain text), the common beginning of two files that
    end in ``.source`` and ``.target``, two files, or, with ``hub``, the name of a split.
    """

    train: tuple[str, ...] | None = None
    valid: tuple[str, ...] | None = None
    test: tuple[str, ...] | None = None
    source: str | None = None
    """Language that is translated from: the ending of plain text, or the field of jsonl and of ``hub``."""
    target: str | None = None
    text: tuple[str, ...] = ("text",)
    """Fields of jsonl and of ``hub`` that hold the text to classify, or both texts of a pair."""
    num_texts: int | None = None
    """How many texts a line of ``.tsv`` has behind its label; none means as many as the training data has."""
    label: str = "label"
    """Field of jsonl and of ``hub`` that holds the label."""
    labels: str = "class"
    """What labels are: names of a ``class``, or a ``number`` to be estimated."""
    form: str = "blocks"
    """How a language model reads text: in ``blocks`` of all lines one behind the other, or ``lines`` by themselves."""
    empty_lines: str | None = None
    """Whether empty lines of plain text are ends of lines like others (``keep``) or passed over (``skip``); none means
    kept by language models and passed over by masked ones."""
    hub: str | None = None
    """Name of a data set of the ``datasets`` library; needs the extra ``data``."""
    hub_config: str | None = None
    hub_revision: str | None = None
    on_bad_line: str = "fail"
    """Whether a malformed line is an error (``fail``), or left out and counted (``skip``)."""
    max_chars: int = 100_000
    max_tokens: int | None = None
    """The most tokens of a text in training; none means what the model can take. For language models: how many tokens
    they see at a time, none meaning 512 or, if that is less, what the model can take."""
    too_long: str | None = None
    """Whether longer examples are left out (``skip``) or shortened (``cut``); none means what suits the task."""
    cache: str | None = None
    """Where tokenised corpora are kept; none means ``$DEPTHWISE_CACHE``, or ``~/.cache/depthwise``."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How text becomes tokens: by a tokenizer that is trained on the training data, or by an existing one."""

    kind: str = "bpe"
    """``bpe``, ``unigram``, ``word``, ``char`` or ``byte``."""
    vocab_size: int | None = None
    """The most types; none means by the size of the training data."""
    joint: bool = True
    """One tokenizer for both sides of a translation, or one for each."""
    byte_fallback: bool = False
    pretokenized: bool = False
    lowercase: bool = False
    normalization: str = "nfc"
    path: str | None = None
    """A folder with a tokenizer that Transformers saved, instead of training one."""
    codes: str | None = None
    """A file of byte-pair codes of subword-nmt, instead of training them."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, in which steps and in which precision a model is trained, and what is kept of it."""

    optimizer: dict[str, Any] = field(default_factory=lambda: {"kind": "adam", "lr": 5e-4})
    """``kind`` (adam, adamw, nesterov, lamb), ``lr`` and the other options of that optimiser."""
    schedule: dict[str, Any] = field(default_factory=lambda: {"kind": "inverse_sqrt", "warmup": 4000})
    """``kind`` (constant, inverse_sqrt, polynomial, linear, cosine) and its options; totals follow from the length."""
    label_smoothing: float = 0.0
    smoothing_over_others: bool = False
    """Spread the smoothed mass over the other types only, as fairseq does since 2020, and not over all."""
    max_updates: int | None = None
    max_epochs: float | None = None
    batch_tokens: int | None = None
    """Rows times longest text of a batch, at most; with no ``batch_rows`` either, 4,096."""
    batch_rows: int | None = None
    accumulate: int = 1
    """Batches per update."""
    clip_norm: float = 0.0
    """Largest norm of all gradients together; 0 means no limit."""
    precision: str = "auto"
    """``auto`` is bf16 where a GPU has it, else fp32."""
    device: str = "auto"
    compile: bool = False
    """Compile the model with ``torch.compile``."""
    shard: bool = False
    """Split weights, gradients and optimiser over the GPUs of torchrun's processes (FSDP); else each has all (DDP)."""
    log_every: int = 100
    """Updates between two lines of ``metrics.jsonl``."""
    validate_every: int | None = None
    """Updates between two validations with checkpoints; none means once per epoch."""
    save_every: int | None = None
    """Updates between two checkpoints that only serve to go on after an interruption, besides those of validations."""
    metric: str | None = None
    """Metric of the validation data that decides what is best; none means the task's own."""
    patience: int | None = None
    """Stop after so many validations without a better one."""
    select: str = "last"
    """Which checkpoints become the model: the ``last`` or the ``best`` ones."""
    average: int = 1
    """How many of them are averaged."""
    gradient_norms: bool = False
    """Log the norm of the gradients of every layer."""
    report: tuple[str, ...] = ()
    """Where metrics go besides ``metrics.jsonl``: ``tensorboard``, ``wandb``."""
    workers: int | None = None
    """Processes that prepare batches; none means 0 on a CPU and 2 beside a GPU."""
    threads: int | None = None
    """Threads on a CPU; none means torch's choice."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How text is searched for. A source of S tokens may have ``max_factor``·S + ``max_extra`` target tokens; to a
    prompt of a language model come ``max_extra``."""

    num_beams: int = 5
    length_penalty: float = 1.0
    """Exponent α of the length that a hypothesis' log-probability is divided by."""
    max_factor: float = 1.5
    max_extra: int = 20
    no_repeat_ngram: int = 0
    """Forbid any n-gram of this size to occur twice; 0 forbids nothing."""
    early_stopping: bool = False
    """Stop at as many finished hypotheses as there are beams, even if a better one might follow."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How a model is judged."""

    metrics: tuple[str, ...] | None = None
    """Names of metrics, the first being the one that is quoted; none means the task's own."""
    batch_tokens: int = 8192
    """Rows times longest source of a batch, at most."""
    context: int = 1
    """How many tokens at the beginning of a block a language model only sees, since the block before ended in them."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides a run.

    ``model`` is a ``preset``, a ``size`` or ``from`` another run, whose weights and tokenizer are then the beginning,
    and any options of the model over it.
    """

    task: str
    seed: int = 1
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"size": "auto"})
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    generation: SearchConfig = field(default_factory=SearchConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


SIZES = ("auto", "tiny", "small", "base")
PRETRAINED = "from"
ORIGINS = ("preset", "size", PRETRAINED)
"""What the options of a model are based on: one of these, or nothing."""


def parse_recipe(options: Mapping[str, Any], source: str = "recipe") -> Recipe:
    """A recipe from nested dictionaries. Raises ``ConfigError`` with all problems, under the name ``source``."""
    findings = Findings()
    recipe: Recipe = build(Recipe, options, findings)
    single = [problem for problem in option_problems(recipe, RULES) if problem.option not in findings.unreliable]
    problems = [*findings.problems, *single]
    broken = {*findings.unreliable, *(problem.option for problem in problems)}
    problems += [problem for problem in _relation_problems(recipe, broken) if problem.option not in broken]
    if problems:
        raise ConfigError(source, problems)
    return recipe


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
        if isinstance(old, Mapping) and isinstance(value, Mapping) and _same_kind(old, value):
            value = merged(old, value)
        result[name] = value
    return result


def _same_kind(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Options of another kind of optimiser or schedule do not carry over."""
    return "kind" not in new or old.get("kind") == new["kind"]


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
        for name in ("optimizer", "schedule"):
            if "kind" not in getattr(training, name):
                yield Problem(f"training.{name}", f"has no kind; write {name}: {{kind: ..., ...}}")
    if recipe.task == "translation" and isinstance(data, DataConfig) and (data.source is None) != (data.target is None):
        missing = "source" if data.source is None else "target"
        yield Problem(f"data.{missing}", "is missing; give both languages, or name both files of each split")
    if isinstance(recipe.tokenizer, TokenizerConfig) and recipe.tokenizer.path and recipe.tokenizer.codes:
        yield Problem("tokenizer.codes", "is given beside tokenizer.path; give one of them")
    if isinstance(recipe.model, Mapping):
        yield from _model_problems(recipe)


def _endless(recipe: Recipe) -> Iterator[Problem]:
    if "size" not in recipe.model:
        yield Problem("training.max_updates", "is missing, and so is max_epochs; say how long to train")


def _model_problems(recipe: Recipe) -> Iterator[Problem]:
    """Problems of the model before its vocabulary is known."""
    size = recipe.model.get("size")
    if size is not None and (message := choice(SIZES, size) if isinstance(size, str) else "expected text"):
        yield Problem("model.size", message)
    given = [name for name in ORIGINS if name in recipe.model]
    if len(given) > 1:
        yield Problem(f"model.{given[1]}", f"is given beside model.{given[0]}; give one of them")
        return
    if PRETRAINED in given and not isinstance(recipe.model[PRETRAINED], str):
        yield Problem(f"model.{PRETRAINED}", f"expected the folder of a run, got {shown(recipe.model[PRETRAINED])}")
    try:
        options = model_options(recipe.model)
    except ConfigError:
        yield Problem("model.preset", f"{shown(recipe.model['preset'])} is no preset; depthwise recipes lists them")
        return
    if size is not None or PRETRAINED in given:
        options = merged(_placeholder(recipe.task, options), options)
    adaptive = options.get("adaptive")
    cutoffs = adaptive.get("cutoffs") if isinstance(adaptive, Mapping) else None
    last = max((cutoff for cutoff in cutoffs if isinstance(cutoff, int)), default=0) if cutoffs else 0
    try:
        parse_model({"vocab_size": last + 1000, **options})
    except ConfigError as error:
        yield from (Problem(f"model.{problem.option}", problem.message) for problem in error.problems)


def _placeholder(task: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Stands in for what a size or another run will decide, so that the options beside it can be checked."""
    sides: dict[str, Any] = {"decoder" if task == "language_modeling" else "encoder": {"num_heads": 1}}
    for side in ("encoder", "decoder"):
        given = options.get(side)
        if isinstance(given, Mapping):
            needs_kernels = given.get("mixer", "attention") not in ("attention", "average")
            sides[side] = {"num_heads": 1, **({"kernel_sizes": 3} if needs_kernels else {})}
    return {"width": 64, **sides}


def _share(value: float) -> str | None:
    return None if value > 0 else f"{value} is too small; give a number above 0"


def _not_empty(value: tuple[str, ...]) -> str | None:
    return None if value and all(value) else "is empty; give a path"


def _splits(value: tuple[str, ...]) -> str | None:
    if len(value) > 2:
        return f"{len(value)} files are given; a split is one file or one for each side"
    return _not_empty(value)


def _reports(value: tuple[str, ...]) -> str | None:
    return next((message for name in value if (message := choice(REPORTS, name))), None)


RULES: Rules = {
    "task": partial(choice, TASKS),
    "seed": partial(at_least, 0),
    **dict.fromkeys(("train", "valid", "test"), _splits),
    "text": _not_empty,
    "num_texts": partial(at_least, 1),
    "labels": partial(choice, LABEL_KINDS),
    "form": partial(choice, ("blocks", "lines")),
    "empty_lines": partial(choice, ("keep", "skip")),
    "context": partial(at_least, 1),
    **MASKING_RULES,
    "on_bad_line": partial(choice, ("fail", "skip")),
    "too_long": partial(choice, ("skip", "cut")),
    "kind": partial(choice, ("bpe", "unigram", "word", "char", "byte")),
    "normalization": partial(choice, ("none", "nfc", "nfkc")),
    "precision": partial(choice, PRECISIONS),
    "device": partial(choice, DEVICES),
    "select": partial(choice, SELECTIONS),
    "report": _reports,
    "label_smoothing": probability,
    **dict.fromkeys(("max_chars", "vocab_size", "max_updates", "batch_tokens", "batch_rows"), partial(at_least, 1)),
    **dict.fromkeys(
        ("accumulate", "log_every", "validate_every", "save_every", "patience", "average"), partial(at_least, 1)
    ),
    **dict.fromkeys(("threads", "num_beams"), partial(at_least, 1)),
    "max_tokens": partial(at_least, 2),
    **dict.fromkeys(("clip_norm", "workers", "max_extra", "no_repeat_ngram", "max_factor"), partial(at_least, 0)),
    "max_epochs": _share,
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
