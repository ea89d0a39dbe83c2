"""The arithmetic mean of several checkpoints, which often beats each of them (Vaswani et al. 2017, section 6.1).

A checkpoint is a ``.safetensors`` file, or a folder as ``save_pretrained`` writes it: ``model.safetensors``, or shards
with ``model.safetensors.index.json``. Files are mapped, not loaded: at any time one tensor of one checkpoint is in
memory beside the result.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from depthwise.errors import CheckpointError
from depthwise.shapes import Tensor
from depthwise.training.checkpoints import checkpoints as checkpoints_of

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def last_checkpoints(run: str | Path, count: int) -> list[Path]:
    """The last ``count`` folders ``checkpoint-<step>`` of a run, in the order of their steps; fewer is an error."""
    found = checkpoints_of(Path(run))
    if count < 1:
        raise CheckpointError(f"the mean of {count} checkpoints is not defined; give 1 or more")
    if len(found) < count:
        raise CheckpointError(f"{run} holds {len(found)} checkpoints, not the {count} to be averaged; give fewer")
    return found[-count:]


def average_weights(checkpoints: Sequence[str | Path]) -> dict[str, Tensor]:
    """The mean of every tensor, under its name and in its own type.

    Sums are in float64, and an element on which all agree is kept as it is: the mean of identical checkpoints is that
    checkpoint, bit for bit. Whole numbers and booleans have no mean; those of the last checkpoint are taken. Raises
    ``CheckpointError`` with file and name where checkpoints differ in names, shapes or types.
    """
    opened = _open_all(checkpoints)
    return {name: _mean(name, opened) for name in opened[0].files}


def write_average(checkpoints: Sequence[str | Path], destination: str | Path) -> Path:
    """Writes ``average_weights`` as ``model.safetensors`` into a folder and returns its path.

    The file appears whole or not at all, and one that was there before stays until then; it may be one of the
    checkpoints.
    """
    folder = Path(destination)
    if (folder / INDEX).exists():
        raise CheckpointError(f"{folder} holds a model in shards, which the mean does not replace; name another folder")
    weights = average_weights(checkpoints)
    path, partial = folder / WEIGHTS, folder / f".{WEIGHTS}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, partial, metadata={"format": "pt"})
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be written: {error}; make room, or name another folder") from error
    finally:
        if folder.is_dir():
            partial.unlink(missing_ok=True)
    return path


@dataclass(frozen=True)
class _Checkpoint:
    """Which file of a checkpoint holds which tensor, and the files, mapped into memory."""

    path: Path
    files: dict[str, Path]
    handles: dict[Path, Any]

    def tensor(self, name: str) -> Tensor:
        tensor: Tensor = self.handles[self.files[name]].get_tensor(name)
        return tensor


def _open_all(checkpoints: Sequence[str | Path]) -> list[_Checkpoint]:
    if not checkpoints:
        raise CheckpointError("there are no checkpoints to average; name at least one")
    opened = [_open(Path(path)) for path in checkpoints]
    first = opened[0]
    for other in opened[1:]:
        for has, lacks in ((first, other), (other, first)):
            missing = sorted(has.files.keys() - lacks.files.keys())
            if missing:
                raise CheckpointError(f"{lacks.path} has no tensor {missing[0]}, which {has.files[missing[0]]} has")
    for name in first.files:
        for other in opened[1:]:
            _check_alike(name, first, other)
    return opened


def _open(path: Path) -> _Checkpoint:
    if not path.is_dir():
        return _open_files(path, [path], None)
    if (path / WEIGHTS).exists():
        return _open_files(path, [path / WEIGHTS], None)
    index = path / INDEX
    if not index.exists():
        raise CheckpointError(f"{path} holds neither {WEIGHTS} nor {INDEX}; name the folder of a checkpoint")
    try:
        shards = {str(name): str(file) for name, file in json.loads(index.read_text("utf-8"))["weight_map"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} does not say which shard holds which tensor: {error!r}") from error
    outside = [file for file in shards.values() if Path(file).name != file]
    if outside:
        raise CheckpointError(f"{index} names {outside[0]}, which is not a file of its own folder")
    return _open_files(path, sorted({path / file for file in shards.values()}), shards)


def _open_files(path: Path, files: Sequence[Path], shards: dict[str, str] | None) -> _Checkpoint:
    handles, found = {}, {}
    for file in files:
        try:
            handle = safe_open(file, framework="pt")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} cannot be read as safetensors: {error}") from error
        handles[file] = handle
        found.update({(file.name, name): file for name in handle.keys()})  # noqa: SIM118 (no iterator)
    if shards is None:
        return _Checkpoint(path, {name: file for (_, name), file in found.items()}, handles)
    for name, shard in shards.items():
        if (shard, name) not in found:
            raise CheckpointError(f"{path / shard} has no tensor {name}, which {path / INDEX} says it has")
    return _Checkpoint(path, {name: path / shard for name, shard in shards.items()}, handles)


def _check_alike(name: str, first: _Checkpoint, other: _Checkpoint) -> None:
    here, there = (checkpoint.handles[checkpoint.files[name]].get_slice(name) for checkpoint in (first, other))
    for what, ours, theirs in (
        ("shape", here.get_shape(), there.get_shape()),
        ("type", here.get_dtype(), there.get_dtype()),
    ):
        if ours != theirs:
            raise CheckpointError(
                f"{name} has {what} {ours} in {first.files[name]} but {what} {theirs} in {other.files[name]}"
            )


def _mean(name: str, checkpoints: Sequence[_Checkpoint]) -> Tensor:
    first = checkpoints[0].tensor(name)
    if not first.is_floating_point():
        return checkpoints[-1].tensor(name).clone()
    dtype = first.dtype
    first = first.double()
    total, agree = first, torch.ones(first.shape, dtype=torch.bool)
    for checkpoint in checkpoints[1:]:
        tensor = checkpoint.tensor(name).double()
        total = total + tensor
        agree &= tensor == first
    return torch.where(agree, first, total / len(checkpoints)).to(dtype)
