"""What an import leaves: a run that is there whole or not at all, and what there is to say about it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from depthwise.errors import CheckpointError

OF_RUNS = ("config.json", "recipe.yaml")
"""Files by which the folder of a run or a model is told from one of anything else."""


@dataclass(frozen=True)
class Conversion:
    """What was made of which file. ``remarks`` are sentences for the user, the first one about the text it takes."""

    folder: Path
    checkpoint: Path
    model: str
    num_parameters: int
    remarks: tuple[str, ...]


def check_destination(
    destination: Path, source: Path, *, force: bool, what: str = "the model to be imported", new: str = "the run"
) -> None:
    """Refuse what must not be overwritten: a file, a run unless forced, any other content, the source itself.

    ``what`` is there, and ``new`` is to be written.
    """
    if destination.exists() and not destination.is_dir():
        raise CheckpointError(f"{destination} is a file; give a folder for the run")
    if source.resolve().is_relative_to(destination.resolve()):
        raise CheckpointError(f"{destination} holds {what}; give another folder for {new}")
    if not destination.is_dir() or not any(destination.iterdir()):
        return
    if not any((destination / name).is_file() for name in OF_RUNS):
        raise CheckpointError(f"{destination} is not empty and holds no run to replace; give another folder")
    if not force:
        raise CheckpointError(f"{destination} is not empty; give another folder, or --force to replace it")


@contextmanager
def written_at(destination: Path) -> Iterator[Path]:
    """A new folder to write into, which becomes the destination at the end; after an error nothing has changed."""
    destination = destination.absolute()
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{destination.name}-", dir=destination.parent) as beside:
            folder = Path(beside, "new")
            folder.mkdir()
            yield folder
            _put(folder, destination, aside=Path(beside, "earlier"))
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{destination} cannot be written: {reason}; give another folder") from error


def _put(folder: Path, destination: Path, aside: Path) -> None:
    """Move the folder to its destination; what stood there is moved aside and comes back if that fails."""
    if destination.exists():
        destination.rename(aside)
    try:
        folder.rename(destination)
    except OSError:
        if aside.exists():
            aside.rename(destination)
        raise
