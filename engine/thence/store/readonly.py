"""A file opened for looking only (§13): nothing is written, nothing stays behind."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from ..errors import FileRefused, StoreError
from ..plan import Query, T
from . import refuse
from .connect import connect_reader, uri
from .readers import Readers
from .sql import Schema, load


class ReadOnlyStore:
    """Reads a file that other processes may be writing.

    Raises:
        FileRefused: as for a `SqliteStore`, without needing to write.
        StoreError: the file is of an older schema (``thence migrate`` brings it up to date).
    """

    def __init__(
        self, path: str | os.PathLike[str], *, allow_network_fs: bool = False, schema: Schema | None = None
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._schema = schema or load()
        refuse.check_place(self.path, allow_network_fs=allow_network_fs, write=False)
        state = refuse.probe(self.path, self._schema)
        if state == "new":
            raise FileRefused("missing_file", f"{self.path}: there is no such database, or it is empty")
        if state == "older":
            raise StoreError(f"{self.path}: of an older schema; bring it up to date with 'thence migrate'")
        self._readers = Readers(self._schema, self.path, self._open)

    def _open(self) -> sqlite3.Connection:
        # the last one to close removes -wal and -shm only if it could write; one that could not would leave them
        if os.access(self.path.parent, os.W_OK) and os.access(self.path, os.W_OK):
            return connect_reader(uri(self.path, mode="rw"))
        if refuse.wal_size(self.path):
            return connect_reader(uri(self.path, mode="ro"))
        return connect_reader(uri(self.path, mode="ro", immutable="1"))

    def read(self, query: Query[T]) -> T:
        """Perform ``query`` in one snapshot.

        Raises:
            StoreError: it could not be read.
        """
        return self._readers.read(query)

    def close(self) -> None:
        """Close every connection. May be called again."""
        self._readers.close()
