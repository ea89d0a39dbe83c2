"""Arguments that commands on a finished run share."""

import re
from collections.abc import Sequence
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from depthwise.config import Recipe

if TYPE_CHECKING:
    from depthwise.engine import Drafting

_NAME = re.compile(r"\w+(\.\w+)*")


class Split(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Precision(StrEnum):
    fp32 = "fp32"
    bf16 = "bf16"


DeviceOption = Annotated[Device, typer.Option(help="Where to run; auto is a GPU where there is one.")]
PrecisionOption = Annotated[Precision, typer.Option(help="Numbers that the model computes in.")]

DepthOption = Annotated[
    str,
    typer.Option(
        "--depth",
        help="Run all blocks, leave all at depth N (of the decoder, else encoder; of an encoder with a structure below "
        "a decoder without exits), let the policy decide, or take a setting that was calibrated. As trained means all "
        "blocks, or the depths of words where they have any.",
        metavar="trained|full|N|policy|NAME",
    ),
]

LosslessOption = Annotated[
    int | None,
    typer.Option(
        "--lossless",
        min=1,
        help="Draft text at the exit of this depth and verify it by all blocks: says what full depth says, and lets "
        "nobody leave early.",
        metavar="E",
    ),
]
DraftedOption = Annotated[
    int | None, typer.Option("--drafted", min=1, help="Tokens of a draft, with --lossless.", metavar="N")
]


def drafting_of(depth: int | None, num_drafted: int | None) -> "Drafting | None":
    """What both options ask for."""
    if depth is None:
        if num_drafted is not None:
            raise typer.BadParameter("goes with --lossless; say at which exit to draft", param_hint="--drafted")
        return None

    from depthwise.engine import Drafting

    return Drafting(depth) if num_drafted is None else Drafting(depth, num_drafted)


def depth_of(text: str) -> int | str | None:
    """The depth that the option asks for: none means as the run was trained."""
    if text == "trained":
        return None
    if text.isdecimal():
        return int(text)
    if not text[:1].isalpha():
        raise typer.BadParameter(
            f"{text} is neither trained, full, policy, a number of blocks nor the name of a setting",
            param_hint="--depth",
        )
    return text


def is_change(argument: str) -> bool:
    """Whether an argument is ``section.option=value`` rather than a path."""
    name, equals, _ = argument.partition("=")
    if not equals or not _NAME.fullmatch(name) or Path(argument).exists():
        return False
    return "." in name or name in {field.name for field in fields(Recipe)}


def paths_and_changes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What of mixed arguments are paths, and what changes to the recipe."""
    changes = [argument for argument in arguments if is_change(argument)]
    return [argument for argument in arguments if argument not in changes], changes


def check_file_name(name: str | None) -> None:
    """Results may be called anything that a file in their folder can be called."""
    if name is not None and (not re.fullmatch(r"[\w.-]+", name) or name.startswith(".")):
        raise typer.BadParameter(f"{name} is no name of a file; take letters, digits, - and _", param_hint="--name")


def quieten() -> None:
    """Transformers draws bars of its own when it loads weights."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
