"""A file opened for looking only (§13): nothing is written, nothing stays behind."""

from __future__ import annotations

import contextlib
import glob
import os
import sqlite3
import sys
from pathlib import Path

from ..errors import FileRefused, StoreError
from ..plan import Query, T
from . import locks, refuse
from .connect import connect_reader, uri
from .readers import Readers
from .sql import Schema, load

if sys.platform != "win32":
    import fcntl

# where SQLite keeps its own locks on a database, since version 3.0: a byte for who is about to write, a range that
# every connection in WAL mode holds a shared lock on for as long as it is open
_PENDING, _SHARED, _SHARED_BYTES = 0x40000000, 0x40000002, 510


class ReadOnlyStore:
    """Reads a file that other processes may be writing.

    What a crash left in the -wal stays there, byte for byte: folding it in is left to the next one who writes.

    Raises:
        FileRefused: as for a `SqliteStore`, without needing to write.
        StoreError: the file is of an older schema (opening it with an Agent brings it up to date).
    """

    def __init__(
        self, path: str | os.PathLike[str], *, allow_network_fs: bool = False, schema: Schema | None = None
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._schema = schema or load()
        refuse.check_place(self.path, allow_network_fs=allow_network_fs, write=False)
        self._orphan = refuse.wal_size(self.path) > 0 and not Path(f"{self.path}-shm").exists()
        state = refuse.probe(self.path, self._schema)
        if state == "new":
            raise FileRefused("missing_file", f"{self.path}: there is no such database, or it is empty")
        if state == "older":
            raise StoreError(f"{self.path}: of an older schema; opening it with an Agent brings it up to date")
        self._readers = Readers(self._schema, self.path, self._open)

    def _open(self) -> sqlite3.Connection:
        wal = refuse.wal_size(self.path) > 0
        # the last one to close folds a -wal in and removes it, with -shm, if it could write; one that could not would
        # leave them. Where there is none, or whoever is at work may end while we look, that is what we want
        writable = os.access(self.path.parent, os.W_OK) and os.access(self.path, os.W_OK)
        if writable and not (wal and self._is_abandoned()):
            return connect_reader(uri(self.path, mode="rw"))
        if wal:
            return connect_reader(uri(self.path, mode="ro"))
        return connect_reader(uri(self.path, mode="ro", immutable="1"))

    def _is_abandoned(self) -> bool:
        """Nobody who runs sessions here lives."""
        try:
            return not any(map(_is_held, self.path.parent.glob(f"{glob.escape(self.path.name)}-owner-*")))
        except OSError:
            return False

    def read(self, query: Query[T]) -> T:
        """Perform ``query`` in one snapshot.

        Raises:
            StoreError: it could not be read.
        """
        return self._readers.read(query)

    def close(self) -> None:
        """Close every connection. May be called again."""
        self._readers.close()
        if self._orphan:
            self._orphan = False
            _remove_index(self.path)


def _is_held(file: Path) -> bool:
    """Whether a living process holds an owner file. Unlike a writer's probe this removes nothing."""
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        return not locks.try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _remove_index(path: Path) -> None:
    """Remove a -shm that came with us to a -wal without one, unless somebody else has opened the file meanwhile.

    As SQLite does it: under the exclusive lock on the database, which nobody who uses a -shm leaves free.
    """
    index = Path(f"{path}-shm")
    # in use, or not ours to remove: then it stays, and whoever writes next removes it
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            index.unlink()
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _PENDING)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_BYTES, _SHARED)
            index.unlink()
        finally:
            os.close(descriptor)
