"""Optimisers and schedules by name, and whether they take the options that they are given."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from depthwise.config import nearest
from depthwise.config.parsing import choice, finite, type_message, whole
from depthwise.errors import ConfigError, Problem

Builders = Mapping[str, Callable[..., Any]]
"""Builders by name. The options of one are its arguments that can only be given by keyword."""


def checked_builder(
    what: str, kind: object, builders: Builders, options: Mapping[str, Any], *beside: Callable[..., Any]
) -> Callable[..., Any]:
    """The builder called ``kind`` with its options, once it is clear that it takes them.

    Lists become tuples, and 1e4 a whole number where one is wanted.

    Options may also be for functions ``beside`` it.
    """
    if problems := list(builder_problems(kind, builders, options, *beside)):
        raise ConfigError(f"{what} {kind}" if kind in tuple(builders) else what, problems)
    builder = builders[str(kind)]
    known = _keywords(builder)
    own = {name: whole(value, known[name].annotation) for name, value in options.items() if name in known}
    return partial(builder, **{name: tuple(value) if isinstance(value, list) else value for name, value in own.items()})


def builder_problems(
    kind: object,
    builders: Builders,
    options: Mapping[Any, Any],
    *beside: Callable[..., Any],
    later: Collection[str] = (),
) -> Iterator[Problem]:
    """Whatever names and types of values tell; options that are decided ``later`` may be missing."""
    if message := type_message(kind, str) or choice(tuple(builders), str(kind)):
        yield Problem("kind", message)
        return
    own = _keywords(builders[str(kind)])
    known = {name: parameter for taker in beside for name, parameter in _keywords(taker).items()} | own
    for name, value in options.items():
        if name not in known:
            close = nearest(str(name), known)
            remedy = f"did you mean {close}?" if close else f"{kind} takes {', '.join(known)}"
            yield Problem(str(name), f"unknown option; {remedy}")
        elif message := _value_message(value, known[name].annotation):
            yield Problem(name, message)
    for name, parameter in own.items():
        if parameter.default is parameter.empty and name not in options and name not in later:
            yield Problem(name, f"missing; {kind} cannot do without it")


def _keywords(taker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(taker).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}


def _value_message(value: Any, hint: Any) -> str | None:
    return type_message(whole(value, hint), hint) or (finite(value) if isinstance(value, float) else None)
