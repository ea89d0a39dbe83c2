"""What an import leaves: a run that is there whole or not at all, and what there is to say about it."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from depthwise.errors import CheckpointError
from depthwise.models.configuration import DepthwiseConfig

CONFIG, GIVEN = "config.json", "recipe.given.yaml"


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
    if not _holds_run(destination):
        raise CheckpointError(f"{destination} is not empty and holds no run to replace; give another folder")
    if not force:
        raise CheckpointError(f"{destination} is not empty; give another folder, or --force to replace it")


def _holds_run(folder: Path) -> bool:
    """Whether this is a training, also one that was stopped, or a model of ours.

    Others write files called config.json and recipe.yaml too, so that neither name says enough.
    """
    if (folder / GIVEN).is_file():
        return True
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("model_type") == DepthwiseConfig.model_type


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
