"""Folders of the cache: written once, whole or not at all, and never taken on trust.

A folder is written beside its place and renamed at the end, so that whatever interrupts the writing leaves nothing that
could be mistaken for a whole one. Processes that want the same folder wait for the first to write it. It has checksums
of all its files (``store.write_meta``); where one is wrong, the folder is written again.
"""

import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from depthwise.data.store import damage
from depthwise.errors import DataError

log = logging.getLogger(__name__)


def kept(place: Path, write: Callable[[Path], None], *, what: str, again: str) -> Path:
    """The folder at this place, filled by ``write`` unless it is there already.

    ``what`` it holds is said where it cannot be written, and what is done ``again`` where it is damaged.
    """
    cache = place.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f".{place.name}.lock"):
            if place.exists():
                if (fault := damage(place)) is None:
                    return place
                log.warning("%s is damaged (%s); %s", place, fault, again)
            _write_beside(place, write)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{cache} cannot hold {what}: {reason}; free space or give another cache") from error
    return place


def _write_beside(place: Path, write: Callable[[Path], None]) -> None:
    """Write to a folder beside the place, then let it take the place. The caller holds the lock."""
    beside = f".{place.name}-"
    for leftover in place.parent.glob(f"{beside}*"):  # of a process that was killed: whoever lives holds the lock
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=beside, dir=place.parent, ignore_cleanup_errors=True) as workshop:
        new = Path(workshop, "new")
        new.mkdir()
        write(new)
        if place.exists():
            place.rename(Path(workshop, "damaged"))
        new.rename(place)
