"""Rows of numbers that took long to find, kept on disk under keys: one SQLite file for each thing that finds them.

    about       what found the numbers, and how many stand in a row
    found       key (32 bytes) -> float32 rows, with a checksum of key and rows

What was added is on the disk once ``add`` returns, so that whoever is interrupted goes on from there. Several processes
may read and add at the same time. Nothing is taken on trust: an entry that is not what was written is said to be so and
left out, to be found again, and a file that belongs to another finder is refused.
"""

import logging
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from depthwise.errors import DataError

FORMAT = "1"
Numbers = npt.NDArray[np.float32]
PATIENCE = 600.0
"""Seconds to wait for other processes that write."""
AT_ONCE = 500
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NumberCache:
    """Rows of ``width`` numbers by key. ``finder`` tells apart what gives different numbers for the same key."""

    path: Path
    finder: str
    width: int

    def known(self, keys: Sequence[bytes]) -> dict[bytes, Numbers]:
        """What is there of these keys, and whole."""
        found: dict[bytes, Numbers] = {}
        if not self.path.exists():
            return found
        with self._opened() as connection:
            for begin in range(0, len(keys), AT_ONCE):
                part = list(keys[begin : begin + AT_ONCE])
                places = ",".join("?" * len(part))
                rows = connection.execute(f"SELECT key, rows, sum FROM found WHERE key IN ({places})", part)
                found.update(self._whole(rows))
        return found

    def add(self, rows: Mapping[bytes, Numbers]) -> None:
        """Keep these too."""
        entries = [(key, data := values.astype("<f4").tobytes(), _sum(key, data)) for key, values in rows.items()]
        with self._opened() as connection, connection:
            connection.executemany("INSERT OR REPLACE INTO found VALUES (?, ?, ?)", entries)

    def _whole(self, rows: Iterable[tuple[bytes, bytes, int]]) -> Iterator[tuple[bytes, Numbers]]:
        for key, data, checksum in rows:
            if not isinstance(data, bytes) or _sum(key, data) != checksum or len(data) % (4 * self.width):
                log.warning("%s: an entry is damaged and is found again", self.path)
                continue
            yield key, np.frombuffer(data, "<f4").reshape(-1, self.width).astype(np.float32)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=PATIENCE)) as connection:
                self._begin(connection)
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise DataError(f"{self.path} cannot be used: {error}; remove it, to be made again") from error

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Make the tables of a new file, or see that an old one is of the same finder."""
        wanted = {"format": FORMAT, "finder": self.finder, "width": str(self.width)}
        with connection:
            connection.execute("CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT)")
            connection.execute("CREATE TABLE IF NOT EXISTS found (key BLOB PRIMARY KEY, rows BLOB, sum INTEGER)")
            connection.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", wanted.items())
        if dict(connection.execute("SELECT name, value FROM about")) != wanted:
            raise DataError(f"{self.path} was made by another model or version; remove it, to be made again")


def _sum(key: bytes, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(key))
