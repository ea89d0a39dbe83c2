"""Commands and recipes that pages name within a sentence or a table: they and their options have to exist."""

import fnmatch
import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer

from depthwise.cli.main import app
from depthwise.config import built_in, read_recipe
from depthwise.errors import DepthwiseError

from .blocks import REPOSITORY, BadBlock, Span
from .calling import Failed
from .scripts import parser_of
from .shell import Call

OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
RECIPES = tuple(sorted({recipe.name for recipe in built_in()}))
GROUPS = "|".join(sorted({name.partition("/")[0] for name in RECIPES}))
RECIPE = re.compile(rf"(?:{GROUPS})/[\w.,*{{}}…-]+")
PLACE = re.compile(r"(?:src|tests|docs|benchmarks|examples)/[\w./-]+")
"""A file or folder of the repository."""
LEFT_OUT = re.compile(r"[A-Z…\[\]|]|\.\.\.")
"""What shows that a reader has to fill something in: CAPITALS, [brackets], dots."""
SCRIPT = re.compile(r"(python )?((?:benchmarks|examples)/\w+\.py)(.*)")
STORIES = ("CHANGELOG.md",)
"""Pages that tell what was, and ask nobody to run it."""
FILLED_IN = {
    "MIXER": "dynamicconv",
    "DTYPE": "bfloat16",
    "--json FILE": "--json FILE.json",
    "--plot FILE": "--plot FILE.png",
}
"""What a reader might fill in."""


def call_of(span: Span) -> Call | None:
    """The command that a sentence asks for: a script with its arguments, or ``depthwise`` with a run; else none.

    Options in brackets are taken, and what a reader has to fill in is filled in.
    """
    script = SCRIPT.fullmatch(span.text)
    if span.page in STORIES:
        return None
    if script is not None and (script[1] or script[3]):
        arguments = script[3].replace("[", "").replace("]", "")
        for name, value in FILLED_IN.items():
            arguments = arguments.replace(name, value)
        return Call("python", (script[2], *shlex.split(arguments)), b"")
    if re.match(r"depthwise .*\bruns/", span.text) and not LEFT_OUT.search(span.text):
        return Call("depthwise", tuple(shlex.split(span.text)[1:]), b"")
    return None


def check_span(span: Span) -> None:
    """A command has a known name, its options are known, and so are recipes; other code is not looked at."""
    try:
        if span.text.startswith("depthwise "):
            check_command(span.text.removeprefix("depthwise "))
        elif span.text.startswith("train ") and "/" in span.text:
            check_command(span.text)
        elif (found := SCRIPT.fullmatch(span.text)) is not None:
            check_script(found[2], found[3])
        elif RECIPE.fullmatch(span.text):
            check_recipe(span.text)
        elif PLACE.fullmatch(span.text) and not (REPOSITORY / span.text).exists():
            raise Failed("there is no such file")
    except (DepthwiseError, Failed, ValueError) as error:
        raise BadBlock(f"{span.where}: `{span.text}`: {error}") from error


def check_command(text: str) -> None:
    command: Any = typer.main.get_command(app)
    words = shlex.split(text.replace("\\|", "|"))
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name = words.pop(0)
        known = [command.commands[part] for part in name.split("|") if part in command.commands]
        if len(known) != len(name.split("|")):
            raise Failed(f"there is no command {name}")
        command = known[0]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    if unknown := [option for option in OPTION.findall(text) if option not in {*options, "--help", "-h"}]:
        raise Failed(f"there is no option {', '.join(unknown)}")
    if command.name == "train" and words and RECIPE.fullmatch(words[0]) and not LEFT_OUT.search(words[0]):
        changes = [word for word in words[1:] if "=" in word and not LEFT_OUT.search(word.partition("=")[0])]
        read_recipe(words[0], [change for change in changes if not change.startswith("--")])


def check_script(script: str, arguments: str) -> None:
    parser = parser_of(script, [], reads=False)
    known = set(options_of(parser))
    if unknown := [option for option in OPTION.findall(arguments) if option not in known]:
        raise Failed(f"{script} has no option {', '.join(unknown)}")


def options_of(parser: Any) -> Iterator[str]:
    """The options of a script, those of its own commands too."""
    yield from ("-h", "--help")
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action.choices, dict):
            for nested in action.choices.values():
                yield from options_of(nested)


def check_recipe(text: str) -> None:
    """A recipe, or all that a pattern stands for: ``*``, ``…`` and CAPITALS for anything, ``{a,b}`` for each."""
    for name in braces(text):
        pattern = re.sub(r"[A-Z]+|…", "*", name)
        if not fnmatch.filter(RECIPES, pattern):
            raise Failed("there is no such recipe")


def braces(text: str) -> list[str]:
    found = re.search(r"\{([^{}]*)\}", text)
    if found is None:
        return [text]
    return [name for part in found[1].split(",") for name in braces(text[: found.start()] + part + text[found.end() :])]
