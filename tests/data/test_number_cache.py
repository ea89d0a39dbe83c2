"""Numbers on disk: there again, and never trusted blindly."""

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from depthwise.data.number_cache import NumberCache
from depthwise.errors import DataError

FIRST, SECOND = b"1" * 32, b"2" * 32
ROWS = {FIRST: np.array([[1, 2], [3, 4], [5, 6]], np.float32), SECOND: np.empty((0, 2), np.float32)}


@pytest.fixture
def cache(tmp_path: Path) -> NumberCache:
    return NumberCache(tmp_path / "folder" / "x.sqlite", "some model", 2)


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


def test_there_and_back(cache: NumberCache) -> None:
    assert cache.known([FIRST]) == {}
    assert not cache.path.exists()
    cache.add(ROWS)
    found = NumberCache(cache.path, "some model", 2).known([FIRST, SECOND, b"3" * 32])
    assert found.keys() == ROWS.keys()
    for key, rows in ROWS.items():
        assert np.array_equal(found[key], rows)
        assert found[key].shape == rows.shape
    cache.add({FIRST: ROWS[FIRST] + 1})
    assert np.array_equal(cache.known([FIRST])[FIRST], ROWS[FIRST] + 1)


def test_many_keys(cache: NumberCache) -> None:
    keys = [number.to_bytes(32, "big") for number in range(1201)]
    cache.add({key: np.full((1, 2), number, np.float32) for number, key in enumerate(keys)})
    found = cache.known(keys)
    assert [int(found[key][0, 0]) for key in keys] == list(range(1201))


@pytest.mark.parametrize("broken", [b"", b"abc", np.zeros((3, 2), np.float32).tobytes(), "text"])
def test_a_damaged_entry_is_left_out(cache: NumberCache, broken: object, caplog: pytest.LogCaptureFixture) -> None:
    cache.add(ROWS)
    change(cache.path, "UPDATE found SET rows = ? WHERE key = ?", broken, FIRST)
    with caplog.at_level(logging.WARNING):
        assert cache.known([FIRST, SECOND]).keys() == {SECOND}
    assert "an entry is damaged and is found again" in caplog.text


def test_an_entry_under_another_key(cache: NumberCache) -> None:
    cache.add(ROWS)
    change(cache.path, "UPDATE found SET key = ? WHERE key = ?", b"3" * 32, FIRST)
    assert cache.known([FIRST, b"3" * 32]) == {}


def test_a_file_of_another_model(cache: NumberCache) -> None:
    cache.add(ROWS)
    for other in (NumberCache(cache.path, "another", 2), NumberCache(cache.path, "some model", 3)):
        with pytest.raises(DataError, match="was made by another model or version; remove it, to be made again"):
            other.known([FIRST])


def test_a_file_that_is_no_cache(cache: NumberCache) -> None:
    cache.path.parent.mkdir()
    cache.path.write_bytes(b"no database at all" * 100)
    with pytest.raises(DataError, match=r"cannot be used: .*; remove it, to be made again"):
        cache.known([FIRST])
    with pytest.raises(DataError, match="cannot be used"):
        cache.add(ROWS)
