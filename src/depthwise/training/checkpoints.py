"""Checkpoints that are there whole or not at all, and that say so themselves.

A checkpoint is a folder ``checkpoint-<update>`` of a run. It is written under another name, with a list of its files,
their sizes and checksums, and renamed at the end: whatever interrupts the writing leaves nothing that could be mistaken
for a checkpoint, and damage that comes later is found before anything is loaded. Some are written at validations and
may become part of the model; others only serve to go on after an interruption.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from depthwise.data.store import file_checksum
from depthwise.errors import CheckpointError
from depthwise.evaluation.results import replace_file

FILES = "files.json"
PROGRESS = "progress.json"
_NUMBERED = re.compile(r"checkpoint-(\d+)")
_PARTIAL = ".partial"
ONLY_TO_GO_ON = ("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth", "trainer_state.json", "*.bin")
"""Files that the mean of checkpoints does not need."""
log = logging.getLogger(__name__)


def checkpoints(run: Path) -> list[Path]:
    """All checkpoints of a run, the oldest first."""
    found = [(int(match[1]), path) for path in run.glob("checkpoint-*") if (match := _NUMBERED.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def update_of(checkpoint: Path) -> int:
    """After how many updates a checkpoint was written."""
    match = _NUMBERED.fullmatch(checkpoint.name)
    assert match is not None
    return int(match[1])


def progress_of(checkpoint: Path) -> dict[str, Any]:
    """Where training stood."""
    progress = json.loads((checkpoint / PROGRESS).read_text(encoding="utf-8"))
    assert isinstance(progress, dict)
    return progress


def newest_whole(run: Path) -> Path | None:
    """The newest checkpoint that training can go on from. Damaged ones are named; if all are, that is an error."""
    faults = []
    for path in reversed(checkpoints(run)):
        fault = damage(path)
        if fault is None and (path / "trainer_state.json").is_file():
            return path
        if fault is not None:
            faults.append(f"{path} is damaged: {fault}")
            log.warning("%s; an earlier one is used", faults[-1])
    if faults:
        raise CheckpointError(f"{'; '.join(faults)}; remove what is damaged to begin anew, or restore it")
    return None


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, judged by every byte of its files, or nothing."""
    try:
        listed = json.loads((checkpoint / FILES).read_text(encoding="utf-8"))
        for name, written in listed.items():
            if not (checkpoint / name).is_file():
                return f"{name} is missing"
            if file_checksum(checkpoint / name) != written:
                return f"{name} is not what was written"
    except (OSError, ValueError, AttributeError):
        return f"{FILES} cannot be read"
    return None


@contextmanager
def written(checkpoint: Path, *, leads: bool) -> Iterator[Path]:
    """A folder to write a checkpoint into, under its own name; it takes its place at the end.

    Several processes may write to it; the one that leads begins and ends it. After an error nothing of it is left, and
    earlier checkpoints are as they were.
    """
    workshop = checkpoint.with_name(f".{checkpoint.name}{_PARTIAL}")
    try:
        new = workshop / checkpoint.name
        new.mkdir(parents=True, exist_ok=True)
        yield workshop
        if leads:
            _seal(new)
            if checkpoint.exists():
                shutil.rmtree(checkpoint)
            new.rename(checkpoint)
    finally:
        if leads:
            shutil.rmtree(workshop, ignore_errors=True)


def _seal(folder: Path) -> None:
    """List the files with their checksums, and have all of them on the disk."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    content = {path.relative_to(folder).as_posix(): file_checksum(path) for path in paths}
    (folder / FILES).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for path in (*paths, folder / FILES, folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def clear_away(run: Path, *, needed: Sequence[int], num_to_go_on: int = 2) -> None:
    """Remove checkpoints that nobody needs, and what only serves to go on from older ones.

    ``needed`` are the updates whose weights may become part of the model. The newest ones, of whatever purpose, stay
    complete, more than one of them in case that one comes to harm.
    """
    found = checkpoints(run)
    for path in found[: max(0, len(found) - num_to_go_on)]:
        if update_of(path) not in needed:
            shutil.rmtree(path)
        elif (path / "trainer_state.json").exists():
            _strip(path)


def remove_unfinished(run: Path, num_updates: int) -> None:
    """Clear away what a process that was killed left of a checkpoint, and damaged ones behind the present update."""
    for path in run.glob(f".checkpoint-*{_PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)
    for path in checkpoints(run):
        if update_of(path) > num_updates:
            shutil.rmtree(path)


def _strip(checkpoint: Path) -> None:
    """Remove what only serves to go on. The list of files is shortened first, so that it never names a lost one."""
    found = {path for pattern in ONLY_TO_GO_ON for path in checkpoint.glob(pattern)}
    extra = sorted(found, key=lambda path: path.name != "trainer_state.json")  # without it nobody goes on from here
    listed = json.loads((checkpoint / FILES).read_text(encoding="utf-8"))
    kept = {name: value for name, value in listed.items() if checkpoint / name not in extra}
    replace_file(checkpoint / FILES, json.dumps(kept, indent=1) + "\n")
    for path in extra:
        path.unlink()
