"""The file that fairseq's trainer writes, read without running any code that it may hold.

Such a file is a pickle: beside weights it holds the arguments of training and, depending on its age, statistics of
training and configuration objects. Loading it the ordinary way would call whatever it names. Here torch's weights-only
loader builds tensors and plain values; objects of fairseq and OmegaConf become inert ``Unread`` objects; a file that
names anything else is refused.
"""

import argparse
import pickletools
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from depthwise.errors import CheckpointError
from depthwise.interop.weights import in_single_precision
from depthwise.shapes import Tensor

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
"""What a file that torch wrote before version 1.6 begins with; newer ones are zip archives."""
ZIP_START = b"PK\x03\x04"
NUM_LEGACY_HEADERS = 3
"""Pickles in front of the one that matters in an old file: magic number, protocol, properties of the machine."""
LEFT_TO_TORCH = (
    *("collections.OrderedDict", "collections.Counter", "_codecs.encode"),
    *("builtins.set", "builtins.bytearray", "builtins.complex"),
)
"""What the weights-only loader builds itself, beside the classes of torch, which it chooses among."""
UNREAD_PACKAGES = ("fairseq", "omegaconf", "typing")
UNREAD_NAMES = (
    *(f"builtins.{name}" for name in ("int", "float", "bool", "str", "bytes", "list", "tuple", "dict", "object")),
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    *("numpy.dtype", "numpy.ndarray"),
)
"""Types and numbers that objects of training refer to. They hold nothing that a model needs."""
SECTIONS = ("task", "tokenizer", "bpe", "model")
"""Parts of a newer configuration that say something about the model and its text; the last one wins."""


class Unread:
    """Stands in for an object whose class is not loaded: keeps what the file says of it, and does nothing."""

    arguments: tuple[Any, ...]
    state: Any = None

    def __new__(cls, *arguments: Any) -> "Unread":
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _empty_dict(*arguments: Any) -> dict[Any, Any]:
    """Stands in for a dictionary with a factory of missing values, which would be called later."""
    return {}


STAND_INS = {"argparse.Namespace": argparse.Namespace, "collections.defaultdict": _empty_dict}


def read_checkpoint(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments a model was trained with and its weights, in single precision where they were in half.

    Arguments are those of the command line (``arch`` among them); from the nested configuration of newer files come
    those of the model, the task and the text. Raises ``CheckpointError`` if the file is no such checkpoint, is damaged
    or names code to be run.
    """
    path = Path(path)
    content = _load(path)
    state = content.get("model") if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(f'{path} holds no weights under "model"; give a checkpoint that fairseq saved')
    args = _arguments(content)
    if not args:
        raise CheckpointError(
            f'{path} holds no arguments under "args" or "cfg"; give the checkpoint as training saved it, not its '
            "weights alone"
        )
    return args, in_single_precision(state)


# The file


def _load(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError(f"{path} is no file; give a checkpoint such as checkpoint_best.pt")
    names = _names(path)
    unread = [name for name in names if name.split(".")[0] in UNREAD_PACKAGES or name in UNREAD_NAMES]
    stand_ins: dict[str, Any] = {**dict.fromkeys(unread, Unread), **STAND_INS}
    for name in names:
        if name not in (*stand_ins, *LEFT_TO_TORCH) and not name.startswith("torch."):
            raise _refusal(path, name)
    with torch.serialization.safe_globals([(stand_in, name) for name, stand_in in stand_ins.items()]):
        try:
            with warnings.catch_warnings(action="ignore"):
                return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever a damaged file makes of the loader
            refused = next((name for name in names if f"{name} " in str(error)), None)
            raise (_damage(path) if refused is None else _refusal(path, refused)) from error


def _refusal(path: Path, name: str) -> CheckpointError:
    return CheckpointError(
        f"{path} asks for {name}, which is refused because it could run code; give a checkpoint from a source you "
        "trust, saved with weights and arguments only"
    )


def _damage(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} cannot be read: it is damaged, incomplete or no checkpoint; copy it again")


def _names(path: Path) -> list[str]:
    """Every class and function that the file names, found without building anything."""
    try:
        with path.open("rb") as file:
            is_zip = file.read(len(ZIP_START)) == ZIP_START
            file.seek(0)
            return list(dict.fromkeys(_names_in_zip(file) if is_zip else _names_in_legacy(file)))
    except _NotATorchFile:
        raise CheckpointError(f"{path} is no file of torch; give a checkpoint that fairseq saved") from None
    except Exception as error:  # whatever a damaged file makes of the readers
        raise _damage(path) from error


class _NotATorchFile(Exception):
    """Neither of the two formats."""


def _names_in_zip(file: IO[bytes]) -> list[str]:
    with zipfile.ZipFile(file) as archive:
        pickles = [name for name in archive.namelist() if name.split("/")[1:] == ["data.pkl"]]
        if not pickles:
            raise _NotATorchFile
        return [name for pickled in pickles for name in _named(archive.read(pickled))]


def _names_in_legacy(file: IO[bytes]) -> list[str]:
    try:
        numbers = [argument for opcode, argument, _ in pickletools.genops(file) if opcode.name == "LONG1"]
    except Exception:
        raise _NotATorchFile from None
    if numbers != [MAGIC_NUMBER]:
        raise _NotATorchFile
    headers = [name for _ in range(NUM_LEGACY_HEADERS - 1) for name in _named(file)]
    return [*headers, *_named(file)]


def _named(pickled: bytes | IO[bytes]) -> Iterator[str]:
    """The names in one pickle, as they are today rather than in Python 2, whose names the usual protocol writes.

    Newer protocols name a class by the two strings last put on the stack, new ones or ones from the memo.
    """
    strings: list[Any] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in ("GLOBAL", "INST"):
            name = ".".join(str(argument).split(" ", 1))
            yield _TODAY.get(name, name.replace("__builtin__.", "builtins.").replace("copy_reg.", "copyreg."))
        elif opcode.name == "STACK_GLOBAL":
            yield ".".join(map(str, strings[-2:]))
        elif opcode.name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if argument is None else argument] = strings[-1] if strings else None
        elif opcode.name in ("GET", "BINGET", "LONG_BINGET"):
            strings.append(memo.get(argument))
        elif isinstance(argument, str):
            strings.append(argument)


_TODAY = {"__builtin__.long": "builtins.int", "__builtin__.unicode": "builtins.str"}


# Its content


def _arguments(content: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an older file, or those that a newer one's configuration has for the model and its text."""
    args = _plain(content.get("args"))
    if isinstance(args, dict) and args:
        return args
    config = _plain(content.get("cfg"))
    if not isinstance(config, dict):
        return {}
    found: dict[str, Any] = {}
    for section in SECTIONS:
        options = config.get(section)
        if isinstance(options, dict):
            found.update((name, value) for name, value in options.items() if name != "_name" and _is_known(value))
            options = options.get("_name")
        if section != "model" and options is not None:
            found[section] = options
    if found.get("arch") is None and isinstance(config.get("model"), dict):
        found["arch"] = config["model"].get("_name")
    return found if found.get("arch") is not None else {}


def _is_known(value: Any) -> bool:
    """Whether a configuration gives a value, rather than a reference to another section or a gap."""
    return not (isinstance(value, str) and (value.startswith("${") or value == "???"))


def _plain(value: Any) -> Any:
    """Namespaces and configuration objects as dictionaries and lists of plain values."""
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, Unread):
        state = value.state if isinstance(value.state, Mapping) else {}
        inside = state.get("_content", state.get("_val", next(iter(value.arguments), None)))
        return _plain(inside)
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
