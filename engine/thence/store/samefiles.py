"""Whether an open database is still the file at its path (§8): moved, deleted or replaced, nobody else sees what we
write. Its -wal and -shm count as much: with another -shm two processes no longer see each other's locks, and overwrite
each other's pages.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypeAlias

from ..errors import FileReplaced

LOOK_S = 0.05
"""A commit that nobody is told of may go without a look for as long as this."""

_Inodes: TypeAlias = "tuple[tuple[int, int], ...]"


class SameFiles:
    """The database and its -wal as they were when it was opened. ``wal_bytes``: length of the -wal when last seen."""

    def __init__(self, path: Path) -> None:
        self.wal_bytes = 0
        self._paths = str(path), f"{path}-wal", f"{path}-shm"
        self._known: _Inodes | None = None
        self._look_at = 0.0
        self.lost_locks = False
        """Another -shm is there: others no longer see our locks, so not even closing the database is safe any more."""

    def opened(self) -> None:
        """The database was opened, for the first time or again, and SQLite has opened its -wal.

        Raises:
            FileReplaced: it is another database than before.
        """
        found = self._stat()
        if self._known is not None and found[0] != self._known[0]:
            raise FileReplaced(f"{self._paths[0]} was replaced by another file while open")
        self._known = found

    def look(self, acknowledged: bool) -> None:
        """Look, unless the last look was a moment ago and nothing is to be ``acknowledged``.

        Raises:
            FileReplaced: one of the files is not what it was.
        """
        now = time.monotonic()
        if not acknowledged and now < self._look_at:
            return
        self._look_at = now + LOOK_S
        found = self._stat()
        if found == self._known:
            return
        known = self._known or ()
        self.lost_locks = found[:2] == known[:2]
        other = (path for path, here, was in zip(self._paths, found, known, strict=False) if here != was)
        what = next(other, self._paths[0])
        raise FileReplaced(f"{what} was replaced by another file while open; reopen it and look at both")

    def _stat(self) -> _Inodes:
        try:
            found = [os.stat(path) for path in self._paths]
        except OSError as error:
            self.lost_locks = error.filename == self._paths[2]
            raise FileReplaced(f"{error.filename} was moved or deleted while open ({error.strerror})") from error
        self.wal_bytes = found[1].st_size
        return tuple((one.st_dev, one.st_ino) for one in found)
