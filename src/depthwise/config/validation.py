"""From plain dictionaries to a ``ModelConfig``, with every mistake reported at once.

Three questions are asked in turn: are the names known and complete, is each value possible by itself (``parsing``), and
do the values agree with each other (``checks``). An option that fails one question is left out of the later ones.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from depthwise.config.checks import relation_problems
from depthwise.config.model import (
    ACTIVATIONS,
    KERNEL_NORMALIZATIONS,
    KERNEL_SOURCES,
    MIXERS,
    NORMS,
    POOLINGS,
    POSITIONS,
    TIED_EMBEDDINGS,
    ModelConfig,
)
from depthwise.config.parsing import Findings, Rules, at_least, build, choice, option_problems, probability, shown
from depthwise.errors import ConfigError, Problem


def parse_model(options: Mapping[str, Any], source: str = "model") -> ModelConfig:
    """Builds a model's options from nested dictionaries, as YAML or JSON gives them.

    Stacks and adaptive bands may be dictionaries or built already; lists become tuples, and a single number serves
    where a list is meant. Raises ``ConfigError`` with all problems, under the name ``source``.
    """
    if not isinstance(options, Mapping):
        raise ConfigError(source, [Problem(source, f"expected a mapping of model options, got {shown(options)}")])
    findings = Findings()
    config: ModelConfig = build(ModelConfig, options, findings)
    problems = [*findings.problems, *_value_problems(config, findings.unreliable)]
    if problems:
        raise ConfigError(source, problems)
    return config


def check_model(config: ModelConfig) -> list[Problem]:
    """Everything that is wrong with a built configuration; never raises."""
    return list(_value_problems(config, frozenset()))


def _value_problems(config: ModelConfig, broken: Collection[str]) -> Iterator[Problem]:
    single = [problem for problem in option_problems(config, RULES) if problem.option not in broken]
    yield from single
    yield from relation_problems(config, {*broken, *(problem.option for problem in single)})


def _kernel_sizes(sizes: tuple[int, ...]) -> str | None:
    small = [f"{size} in layer {layer}" for layer, size in enumerate(sizes) if size < 1]
    return f"{', '.join(small)} is too small; kernel sizes are 1 or more" if small else None


def _cutoffs(cutoffs: tuple[int, ...]) -> str | None:
    if not cutoffs:
        return "an adaptive softmax needs at least one cutoff; give one or remove adaptive"
    if all(low < high for low, high in zip((0, *cutoffs), cutoffs, strict=False)):
        return None
    return f"{shown(cutoffs)} does not increase from above 0; give the ends of the bands in rising order"


_CHOICES = {
    "mixer": MIXERS,
    "kernel_normalization": KERNEL_NORMALIZATIONS,
    "norm": NORMS,
    "activation": ACTIVATIONS,
    "positions": POSITIONS,
    "kernel_from": KERNEL_SOURCES,
    "tied_embeddings": TIED_EMBEDDINGS,
    "pooling": POOLINGS,
}
_COUNTS = (
    *("vocab_size", "source_vocab_size", "width"),
    *("num_layers", "num_heads", "ffn_width", "kernel_heads", "conv_width", "max_positions"),
)
_PROBABILITIES = ("dropout", "attention_dropout", "activation_dropout", "input_dropout", "dropconnect")

RULES: Rules = {
    **{name: partial(choice, names) for name, names in _CHOICES.items()},
    **dict.fromkeys(_COUNTS, partial(at_least, 1)),
    **dict.fromkeys(_PROBABILITIES, probability),
    "kernel_sizes": _kernel_sizes,
    "position_offset": partial(at_least, 0),
    "factor": partial(at_least, 2),
    "cutoffs": _cutoffs,
}
