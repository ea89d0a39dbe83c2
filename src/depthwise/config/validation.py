"""From plain dictionaries to a ``ModelConfig``, with every mistake reported at once.

Three questions are asked in turn: are the names known and complete, is each value possible by itself, and do the
values agree with each other (``checks``). An option that fails one question is left out of the later ones.
"""

import difflib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import partial
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

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
    AdaptiveConfig,
    ModelConfig,
    StackConfig,
)
from depthwise.errors import ConfigError, Problem

_SECTIONS = {"": ModelConfig, "encoder.": StackConfig, "decoder.": StackConfig, "adaptive.": AdaptiveConfig}
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "a boolean (true or false)",
    str: "text",
    dict: "a mapping",
    tuple: "a list of whole numbers",
    StackConfig: "a mapping of stack options",
    AdaptiveConfig: "a mapping of adaptive options",
    NoneType: "null",
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like ``name``, whatever the case and the kind of dash; none if none is close."""
    spellings = {_spelling(candidate): candidate for candidate in known}
    found = difflib.get_close_matches(_spelling(name), spellings, n=1)
    return spellings[found[0]] if found else None


def _spelling(name: str) -> str:
    return name.lower().replace("-", "_")


def parse_model(options: Mapping[str, Any], source: str = "model") -> ModelConfig:
    """Builds a model's options from nested dictionaries, as YAML or JSON gives them.

    Stacks and adaptive bands may be dictionaries or built already; lists become tuples, and a single number serves
    where a list is meant. Raises ``ConfigError`` with all problems, under the name ``source``.
    """
    if not isinstance(options, Mapping):
        raise ConfigError(source, [Problem(source, f"expected a mapping of model options, got {_shown(options)}")])
    findings = _Findings()
    config: ModelConfig = _build(ModelConfig, options, "", findings)
    problems = [*findings.problems, *_value_problems(config, findings.unreliable)]
    if problems:
        raise ConfigError(source, problems)
    return config


def check_model(config: ModelConfig) -> list[Problem]:
    """Everything that is wrong with a built configuration; never raises."""
    return list(_value_problems(config, frozenset()))


def _value_problems(config: ModelConfig, broken: Collection[str]) -> Iterator[Problem]:
    single = [problem for problem in _option_problems(config, "") if problem.option not in broken]
    yield from single
    yield from relation_problems(config, {*broken, *(problem.option for problem in single)})


# Names: unknown and missing options


@dataclass
class _Findings:
    problems: list[Problem] = field(default_factory=list)
    given: set[str] = field(default_factory=set)
    meant: set[str] = field(default_factory=set)
    """Options that an unknown or missing name probably stood for."""

    @property
    def unreliable(self) -> set[str]:
        """Options whose value here is a default but was meant to be something else: nothing follows from it."""
        return self.meant - self.given


def _build(kind: type[Any], options: Mapping[Any, Any], path: str, findings: _Findings) -> Any:
    hints, values = get_type_hints(kind), {}
    for key, value in options.items():
        if key in hints:
            findings.given.add(path + key)
            values[key] = _coerce(value, hints[key], f"{path}{key}.", findings)
        else:
            findings.problems.append(_unknown(str(key), path, findings))
    for option in fields(kind):
        if option.default is MISSING and option.default_factory is MISSING and option.name not in values:
            values[option.name] = None
            if path + option.name not in findings.meant:
                message = f"required but missing; give {_expected(hints[option.name])}"
                findings.problems.append(Problem(path + option.name, message))
                findings.meant.add(path + option.name)
    return kind(**values)


def _unknown(name: str, path: str, findings: _Findings) -> Problem:
    """Suggests the same name in another section, else the nearest name in this one, else lists them all."""
    known = get_type_hints(_SECTIONS[path])
    meant = [section + name for section, kind in _SECTIONS.items() if name in get_type_hints(kind)]
    if not meant and (close := nearest(name, known)):
        meant = [path + close]
    findings.meant.update(meant)
    remedy = f"did you mean {' or '.join(meant)}?" if meant else f"choose from {', '.join(known)}"
    return Problem(path + name, f"unknown option; {remedy}")


def _coerce(value: Any, hint: Any, path: str, findings: _Findings) -> Any:
    """The value in the form that a dataclass keeps; what does not fit stays as it is, for the type check to report."""
    for kind in _alternatives(hint):
        if isinstance(value, Mapping) and kind in _SECTIONS.values():
            return _build(kind, value, path, findings)
        if isinstance(value, Mapping) and get_origin(kind) is dict:
            return dict(value)
        if isinstance(value, list) and get_origin(kind) is tuple:
            return tuple(value)
        if _fits(value, int) and get_origin(kind) is tuple:
            return (value,)
    return value


# Values: each option by itself


def _option_problems(config: object, path: str) -> Iterator[Problem]:
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        message = _type_message(value, hint) or (RULES[name](value) if name in RULES and value is not None else None)
        if message:
            yield Problem(path + name, message)
        elif is_dataclass(value):
            yield from _option_problems(value, f"{path}{name}.")


def _type_message(value: Any, hint: Any) -> str | None:
    return None if _fits(value, hint) else f"expected {_expected(hint)}, got {_shown(value)}"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    if len(_alternatives(hint)) > 1:
        return any(_fits(value, kind) for kind in _alternatives(hint))
    if get_origin(hint) is tuple:
        return isinstance(value, tuple | list) and all(_fits(item, get_args(hint)[0]) for item in value)
    kind = get_origin(hint) or hint
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def _expected(hint: Any) -> str:
    return " or ".join(_WORDS[get_origin(kind) or kind] for kind in _alternatives(hint))


def _shown(value: Any) -> str:
    """A value as YAML or JSON writes it, cut where it is long."""
    text = json.dumps(value, default=repr, skipkeys=True)
    return text if len(text) <= 60 else text[:57] + "..."


def _choice(names: tuple[str, ...], value: str) -> str | None:
    if value in names:
        return None
    close = nearest(value, names)
    remedy = f"did you mean {close}?" if close else "choose one of these"
    return f"{_shown(value)} is none of {', '.join(names)}; {remedy}"


def _at_least(least: int, value: int) -> str | None:
    return None if value >= least else f"{value} is too small; give {least} or more"


def _probability(value: float) -> str | None:
    return None if 0 <= value < 1 else f"{value} is not a probability; give a number from 0 up to, but not including, 1"


def _kernel_sizes(sizes: tuple[int, ...]) -> str | None:
    small = [f"{size} in layer {layer}" for layer, size in enumerate(sizes) if size < 1]
    return f"{', '.join(small)} is too small; kernel sizes are 1 or more" if small else None


def _shared_layers(blocks: tuple[int, ...]) -> str | None:
    """Blocks are counted from 0 in the order in which layers first run them, so that there is one way to write it."""
    for position, block in enumerate(blocks):
        seen = set(blocks[:position])
        if block not in seen and block != len(seen):
            remedy = "count blocks from 0 in the order of their first use, such as [0, 0, 1, 1]"
            return f"block {block} in layer {position} should be at most {len(seen)}; {remedy}"
    return None


def _epsilon(value: float) -> str | None:
    return None if 0 < value < 1 else f"{value} is no small positive number; give one such as 1e-5"


def _cutoffs(cutoffs: tuple[int, ...]) -> str | None:
    if not cutoffs:
        return "an adaptive softmax needs at least one cutoff; give one or remove adaptive"
    if all(low < high for low, high in zip((0, *cutoffs), cutoffs, strict=False)):
        return None
    return f"{_shown(cutoffs)} does not increase from above 0; give the ends of the bands in rising order"


_CHOICES = {
    "mixer": MIXERS,
    "kernel_normalization": KERNEL_NORMALIZATIONS,
    "norm": NORMS,
    "activation": ACTIVATIONS,
    "positions": POSITIONS,
    "kernel_from": KERNEL_SOURCES,
    "tied_embeddings": TIED_EMBEDDINGS,
    "pooling": POOLINGS,
    "head_transform": ACTIVATIONS,
}
_COUNTS = (
    *("vocab_size", "source_vocab_size", "width", "embedding_width"),
    *("num_layers", "num_heads", "ffn_width", "kernel_heads", "conv_width", "max_positions"),
)
_PROBABILITIES = (
    *("dropout", "attention_dropout", "activation_dropout", "input_dropout", "dropconnect"),
    "classifier_dropout",
)

RULES: dict[str, Callable[[Any], str | None]] = {
    **{name: partial(_choice, names) for name, names in _CHOICES.items()},
    **dict.fromkeys(_COUNTS, partial(_at_least, 1)),
    **dict.fromkeys(_PROBABILITIES, _probability),
    "kernel_sizes": _kernel_sizes,
    "shared_layers": _shared_layers,
    "norm_epsilon": _epsilon,
    "position_offset": partial(_at_least, 0),
    "token_types": partial(_at_least, 0),
    "factor": partial(_at_least, 2),
    "cutoffs": _cutoffs,
}
"""What an option demands of its value, whichever section it stands in; a rule gives a message or none."""
