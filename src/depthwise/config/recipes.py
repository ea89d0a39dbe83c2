"""Finding and reading recipes: by path or by the name of a built-in one, with changes from the command line."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from depthwise.config.parsing import nearest, shown
from depthwise.config.recipe import Recipe
from depthwise.config.recipe_parsing import merged, parse_recipe, recipe_dict
from depthwise.errors import ConfigError, Problem

BASE = "base"
"""The key that names the recipe which this one changes."""
CHANGEABLE = ("data", "generation", "evaluation")
"""The sections that still have a say when a model is trained."""


class _Loader(yaml.SafeLoader):
    """YAML in which values without quotes are what everyone expects, and a key may not be given twice.

    ``5e-4`` is a number; ``no`` (Norwegian), ``2021-02-30`` and ``1:30`` are text.
    """


class _Dumper(yaml.SafeDumper):
    """Puts quotes around any text that ``_Loader`` or another reader of YAML would take for something else."""


_TAG = "tag:yaml.org,2002:"
_SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE"),
    ("int", r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)"),
    ("float", r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"),
    ("float", r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"),
)
"""Values without quotes that are no text; beside these only null and the like."""
_RESOLVED_ANEW = {f"{_TAG}{name}" for name in ("bool", "int", "float", "timestamp")}
_Loader.yaml_implicit_resolvers = {
    letter: [resolver for resolver in resolvers if resolver[0] not in _RESOLVED_ANEW]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _name, _pattern in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), list("-+.0123456789tTfF"))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.MarkedYAMLError(problem=f"{key} is given twice", problem_mark=node.start_mark)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(f"{_TAG}map", _mapping)


@dataclass(frozen=True)
class BuiltIn:
    """A recipe that comes with the package. ``facts`` are the lines ``# name: value`` at the head of its file."""

    name: str
    title: str
    facts: dict[str, str]


def built_in() -> tuple[BuiltIn, ...]:
    """All recipes of the package, by name."""
    return tuple(_described(name, path) for name, path in sorted(_built_in_files()))


def read_recipe(name: str, changes: Sequence[str] = ()) -> Recipe:
    """A recipe by path or built-in name, with changes such as ``training.batch_tokens=2048``."""
    return parse_recipe(with_changes(_options(name), changes, name), source=name)


def recipe_text(name: str) -> str:
    """A recipe by path or built-in name as it was written, comments included."""
    return _text(_find(name))


def load_recipe(path: Path) -> Recipe:
    """The resolved recipe of a run."""
    return parse_recipe(_read(path), source=str(path))


def changed_recipe(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """The recipe of a finished run with changes to its data, search or evaluation. Nothing else can change any more."""
    options = {name: value for name, value in recipe_dict(recipe).items() if name in ("task", *CHANGEABLE)}
    fixed = {field.name for field in fields(Recipe)} - set(CHANGEABLE)
    names = [change.partition("=")[0] for change in changes]
    problems = [
        Problem(name, f"is fixed once a model is trained; changes are to {', '.join(CHANGEABLE)}")
        for name in names
        if name.partition(".")[0] in fixed
    ]
    if problems:
        raise ConfigError("command line", problems)
    changed = parse_recipe(with_changes(options, changes, "command line"), source="command line")
    return replace(recipe, **{section: getattr(changed, section) for section in CHANGEABLE})


def with_changes(options: dict[str, Any], changes: Sequence[str], source: str) -> dict[str, Any]:
    """The options with all changes at once, so that what belongs to a new ``kind`` may be given before it."""
    together: dict[str, Any] = {}
    problems: list[Problem] = []
    for change in changes:
        try:
            together = merged(together, _change(change))
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(source, problems)
    return merged(options, together)


def recipe_yaml(recipe: Recipe) -> str:
    """A recipe as YAML, every option written out."""
    form: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None}
    text: str = yaml.dump(recipe_dict(recipe), Dumper=_Dumper, **form)
    return text


def _options(name: str, chain: tuple[str, ...] = ()) -> dict[str, Any]:
    """The options of a recipe over those of its base."""
    path = _find(name)
    if any(path.samefile(_find(earlier)) for earlier in chain):
        raise ConfigError(name, [Problem(BASE, f"{' -> '.join((*chain, name))} has no end; remove one base")])
    options = _read(path)
    if BASE not in options:
        return options
    base = options.pop(BASE)
    if not isinstance(base, str):
        raise ConfigError(name, [Problem(BASE, f"expected the name of a recipe, got {shown(base)}")])
    beside = path.parent / base
    return merged(_options(str(beside) if beside.is_file() else base, (*chain, name)), options)


def _find(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    known = dict(_built_in_files())
    if name in known:
        return known[name]
    if path.suffix in (".yaml", ".yml") or path.is_absolute():
        raise ConfigError(name, [Problem("recipe", "there is no such file; depthwise recipes lists what is built in")])
    close = nearest(name, known)
    question = f"did you mean {close}? " if close else ""
    raise ConfigError(
        name,
        [Problem("recipe", f"neither a file nor a built-in recipe; {question}depthwise recipes lists all of them")],
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), [Problem("recipe", f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [Problem("recipe", f"is no text in UTF-8: {error.reason}; mend it")]) from None


def _read(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        options = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(str(path), [Problem("recipe", f"is no YAML: {reason}")]) from None
    if not isinstance(options, dict):
        raise ConfigError(
            str(path), [Problem("recipe", f"expected sections such as data: and model:, got {shown(options)}")]
        )
    return options


def _change(text: str) -> dict[str, Any]:
    """``a.b=c`` as nested dictionaries; the value is read as YAML."""
    name, equals, value = text.partition("=")
    if not equals or not all(name.split(".")):
        raise ConfigError("command line", [Problem(text, "is no change; write section.option=value")])
    try:
        leaf = yaml.load(value, Loader=_Loader)
    except yaml.YAMLError:
        leaf = value
    except ValueError as error:
        message = f"{shown(value)} cannot be read: {error}; put text into quotes"
        raise ConfigError("command line", [Problem(name, message)]) from None
    for part in reversed(name.split(".")):
        leaf = {part: leaf}
    assert isinstance(leaf, dict)
    return leaf


def _built_in_files() -> Iterator[tuple[str, Path]]:
    root = Path(str(files("depthwise"))) / "recipes"
    for path in root.rglob("*.yaml"):
        yield path.relative_to(root).with_suffix("").as_posix(), path


def _described(name: str, path: Path) -> BuiltIn:
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    facts: dict[str, str] = {}
    for line in lines[1:]:
        fact, colon, value = line.partition(": ")
        if colon and fact.isidentifier():
            facts[fact] = value
        elif facts and line:
            last = next(reversed(facts))
            facts[last] = f"{facts[last]} {line}"
    return BuiltIn(name, lines[0] if lines else "", facts)
