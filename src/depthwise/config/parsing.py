"""From plain dictionaries, as YAML and JSON give them, to dataclasses, with every mistake reported at once.

Two questions are asked of every option: is its name known (and is none missing), and is its value possible by itself.
Whether values agree with each other is for the owner of the dataclass to say. Sections are fields that hold another
dataclass; an option of one is called by its path, such as ``encoder.num_layers``.
"""

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from math import inf
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from depthwise.errors import Problem

Rules = Mapping[str, Callable[[Any], str | None]]
"""What an option demands of its value, whichever section it stands in; a rule gives a message or none."""
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "a boolean (true or false)",
    str: "text",
    dict: "a mapping",
    NoneType: "null",
}
_PLURALS = {int: "whole numbers", float: "numbers", str: "texts", dict: "mappings"}
_HINTS: dict[type[Any], Mapping[str, Any]] = {}
_SECTIONS: dict[type[Any], Mapping[str, type[Any]]] = {}


def nearest(name: str, known: Iterable[str], least: float = 0.6) -> str | None:
    """The known name that looks most like ``name``, whatever the case and the kind of dash; none if none is close.

    ``least`` is how close it has to be, from 0 to 1.
    """
    spellings = {_spelling(candidate): candidate for candidate in known}
    found = difflib.get_close_matches(_spelling(name), spellings, n=1, cutoff=least)
    return spellings[found[0]] if found else None


def _spelling(name: str) -> str:
    return name.lower().replace("-", "_")


# Names: unknown and missing options


@dataclass
class Findings:
    """What came to light while a dataclass was built."""

    problems: list[Problem] = field(default_factory=list)
    given: set[str] = field(default_factory=set)
    meant: set[str] = field(default_factory=set)
    """Options that an unknown or missing name probably stood for."""
    is_partial: bool = False
    """Whether options that have no default may be missing, since they stand elsewhere."""

    @property
    def unreliable(self) -> set[str]:
        """Options whose value here is a default but was meant to be something else: nothing follows from it."""
        return self.meant - self.given


def build(kind: type[Any], options: Mapping[Any, Any], findings: Findings) -> Any:
    """A dataclass from nested dictionaries; what is missing stands as none, what is unknown is left out."""
    return _build(kind, options, "", findings, _sections(kind))


def _hints(kind: type[Any]) -> Mapping[str, Any]:
    """The types of all options, found once: a configuration is parsed whenever a model is asked for its options."""
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind)
    return _HINTS[kind]


def _sections(kind: type[Any]) -> Mapping[str, type[Any]]:
    """Every section by its path; found once."""
    if kind not in _SECTIONS:
        _SECTIONS[kind] = dict(_found_sections(kind, ""))
    return _SECTIONS[kind]


def _found_sections(kind: type[Any], path: str) -> Iterator[tuple[str, type[Any]]]:
    yield path, kind
    for name, hint in _hints(kind).items():
        for inner in _alternatives(hint):
            if is_dataclass(inner) and isinstance(inner, type):
                yield from _found_sections(inner, f"{path}{name}.")


def option_paths(kind: type[Any]) -> Iterator[str]:
    """Every option of a dataclass and of its sections by its path."""
    for path, section in _sections(kind).items():
        yield from (path + name for name in _hints(section))


def _build(
    kind: type[Any], options: Mapping[Any, Any], path: str, findings: Findings, sections: Mapping[str, type[Any]]
) -> Any:
    hints, values = _hints(kind), {}
    for key, value in options.items():
        if key in hints:
            findings.given.add(path + key)
            values[key] = _coerce(value, hints[key], f"{path}{key}.", findings, sections)
        else:
            findings.problems.append(_unknown(str(key), path, findings, sections))
    for option in fields(kind):
        if option.default is MISSING and option.default_factory is MISSING and option.name not in values:
            values[option.name] = None
            if path + option.name not in findings.meant:
                findings.meant.add(path + option.name)
                if not findings.is_partial:
                    message = f"required but missing; give {_expected(hints[option.name])}"
                    findings.problems.append(Problem(path + option.name, message))
    return kind(**values)


def _unknown(name: str, path: str, findings: Findings, sections: Mapping[str, type[Any]]) -> Problem:
    """Suggests the same name in another section, else the nearest name in this one, else lists them all.

    A name in this section that is nearly the same, such as a plural, comes before those in others.
    """
    known = _hints(sections[path])
    elsewhere = [section + name for section, kind in sections.items() if name in _hints(kind)]
    close = nearest(name, known, least=0.9) if elsewhere else nearest(name, known)
    meant = [*([path + close] if close else []), *elsewhere]
    findings.meant.update(meant)
    remedy = f"did you mean {' or '.join(meant)}?" if meant else f"choose from {', '.join(known)}"
    return Problem(path + name, f"unknown option; {remedy}")


def _coerce(value: Any, hint: Any, path: str, findings: Findings, sections: Mapping[str, type[Any]]) -> Any:
    """The value in the form that a dataclass keeps; what does not fit stays as it is, for the type check to report."""
    if value is None:
        return None
    for kind in _alternatives(hint):
        if isinstance(value, Mapping) and is_dataclass(kind) and isinstance(kind, type):
            return _build(kind, value, path, findings, sections)
        if isinstance(value, Mapping) and get_origin(kind) is dict:
            return dict(value)
        if get_origin(kind) is tuple:
            of_items = get_args(kind)[0]
            if isinstance(value, list):
                return tuple(whole(item, of_items) for item in value)
            if fits(whole(value, of_items), of_items):
                return (whole(value, of_items),)
    return whole(value, hint)


# Values: each option by itself


def option_problems(config: object, rules: Rules, path: str = "") -> Iterator[Problem]:
    """What is wrong with the options of a dataclass and its sections, each by itself."""
    for name, hint in _hints(type(config)).items():
        value = getattr(config, name)
        message = type_message(value, hint) or (rules[name](value) if name in rules and value is not None else None)
        if message:
            yield Problem(path + name, message)
        elif is_dataclass(value):
            yield from option_problems(value, rules, f"{path}{name}.")


def type_message(value: Any, hint: Any) -> str | None:
    """What to say of a value that is not of a type."""
    return None if fits(value, hint) else f"expected {_expected(hint)}, got {shown(value)}"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, where a whole number serves as a number and a truth value as neither."""
    if len(_alternatives(hint)) > 1:
        return any(fits(value, kind) for kind in _alternatives(hint))
    if get_origin(hint) is tuple:
        if not isinstance(value, tuple | list) or _length(hint) not in (None, len(value)):
            return False
        return all(fits(item, get_args(hint)[0]) for item in value)
    kind = get_origin(hint) or hint
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def whole(value: Any, hint: Any) -> Any:
    """A number without a fraction, such as 1e4, as a whole number where only such a one fits; all else as it is."""
    is_meant = isinstance(value, float) and value.is_integer() and not fits(value, hint) and fits(int(value), hint)
    return int(value) if is_meant else value


def _length(hint: Any) -> int | None:
    """How many items a tuple has; none if any number will do."""
    items = get_args(hint)
    return None if ... in items else len(items)


def _expected(hint: Any) -> str:
    return " or ".join(_word(kind) for kind in _alternatives(hint))


def _word(kind: Any) -> str:
    if get_origin(kind) is tuple:
        length = _length(kind)
        count = "" if length is None else f"{length} "
        of_items, *rest = _alternatives(get_args(kind)[0])
        return f"a list of {count}{_PLURALS[of_items]}{' and nulls' if rest else ''}"
    if is_dataclass(kind) and isinstance(kind, type):
        return f"a mapping of {kind.__name__.removesuffix('Config').lower()} options"
    return _WORDS[get_origin(kind) or kind]


def shown(value: Any) -> str:
    """A value as YAML or JSON writes it, cut where it is long."""
    text = json.dumps(value, default=repr, skipkeys=True, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


# Rules


def choice(names: tuple[str, ...], value: str) -> str | None:
    """One of these names."""
    if value in names:
        return None
    close = nearest(value, names)
    remedy = f"did you mean {close}?" if close else "choose one of these"
    return f"{shown(value)} is none of {', '.join(names)}; {remedy}"


def at_least(least: float, value: float) -> str | None:
    """A number that is neither too small nor infinite."""
    return finite(value) or (None if value >= least else f"{value} is too small; give {least} or more")


def seed(value: int) -> str | None:
    """What random numbers begin with."""
    return at_least(0, value) or (None if value < 2**31 else f"{value} is too large; give a number below {2**31}")


def finite(value: float) -> str | None:
    """A number that one can count with."""
    return None if -inf < value < inf else f"{value} is not finite; give a finite number"


def probability(value: float) -> str | None:
    """A number from 0 up to 1, where something must be left."""
    return None if 0 <= value < 1 else f"{value} is not a probability; give a number from 0 up to, but not including, 1"
