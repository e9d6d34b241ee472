"""Whether an open database is still the file at its path (§8): moved, deleted or replaced, nobody else sees what we
write."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypeAlias

from ..errors import FileReplaced

LOOK_S = 0.05
"""A commit that nobody is told of may go without a look for as long as this."""

_Inodes: TypeAlias = "tuple[int, int, int, int]"


class SameFiles:
    """The database and its -wal as they were when it was opened. ``wal_bytes``: length of the -wal when last seen."""

    def __init__(self, path: Path) -> None:
        self.wal_bytes = 0
        self._database, self._wal = str(path), f"{path}-wal"
        self._known: _Inodes | None = None
        self._look_at = 0.0

    def opened(self) -> None:
        """The database was opened, for the first time or again, and SQLite has opened its -wal.

        Raises:
            FileReplaced: it is another database than before.
        """
        found = self._stat()
        if self._known is not None and found[:2] != self._known[:2]:
            raise FileReplaced(f"{self._database} was replaced by another file while open")
        self._known = found

    def replaced(self, *, acknowledged: bool) -> FileReplaced | None:
        """What is wrong after a commit, or None. What is to be ``acknowledged`` is looked at in any case."""
        now = time.monotonic()
        if not acknowledged and now < self._look_at:
            return None
        self._look_at = now + LOOK_S
        try:
            found = self._stat()
        except FileReplaced as fault:
            return fault
        if found == self._known:
            return None
        what = self._database if self._known is None or found[:2] != self._known[:2] else self._wal
        return FileReplaced(f"{what} was replaced by another file while open; reopen it and look at both")

    def _stat(self) -> _Inodes:
        try:
            database, wal = os.stat(self._database), os.stat(self._wal)
        except OSError as error:
            raise FileReplaced(f"{error.filename} was moved or deleted while open ({error.strerror})") from error
        self.wal_bytes = wal.st_size
        return database.st_dev, database.st_ino, wal.st_dev, wal.st_ino
