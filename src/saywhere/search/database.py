"""The SQLite database of an index: transactions, and errors that a user knows."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path

from saywhere.errors import UserError
from saywhere.files import atomic_path

PATIENCE = 60.0
"""Seconds that a reader and the writer wait for each other; each holds the database for milliseconds."""
TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE images (entry INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, size INTEGER NOT NULL,
    time INTEGER NOT NULL, hash BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE dead (entry INTEGER PRIMARY KEY);
"""


class Database:
    """An open database, for several threads.

    Args:
        path: of its file, which must exist.

    Raises:
        UserError: it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.guard = threading.RLock()
        where = f"file:{urllib.parse.quote(os.fsencode(path.absolute()))}?mode=rw"
        with explained(path):
            self._connection: sqlite3.Connection | None = sqlite3.connect(
                where, PATIENCE, isolation_level=None, check_same_thread=False, uri=True
            )

    @contextlib.contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Yield the database; what is done with it counts at the end, all or nothing."""
        connection = self._connection
        if connection is None:
            raise UserError(f"{self._path.parent}: the index was closed")
        with self.guard, explained(self._path):
            connection.execute(f"BEGIN {kind}")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def create(path: Path, facts: Mapping[str, str]) -> None:
    """Write a new database, whole or not at all."""
    with atomic_path(path) as part:
        part.unlink(missing_ok=True)
        with explained(path), contextlib.closing(sqlite3.connect(part)) as new, new:
            new.executescript(TABLES)
            new.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into those that a user knows."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        if "locked" in str(error):
            raise UserError(f"{path}: another program holds it; try again") from error
        raise UserError(f"{path}: cannot be used ({error})") from error
    except sqlite3.DatabaseError as error:
        way_out = f"remove {path.parent} and index the images again"
        raise UserError(f"{path}: is damaged ({error}); {way_out}") from error
