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
        other = (path for path, here, was in zip(self._paths, found, known, strict=False) if here != was)
        what = next(other, self._paths[0])
        raise FileReplaced(f"{what} was replaced by another file while open; reopen it and look at both")

    def wal_bytes_now(self) -> int:
        """Length of the -wal, whenever it was last looked at; 0 when it is gone."""
        wal = _look_at(self._paths[1])
        return 0 if wal is None else wal.st_size

    def may_be_closed(self) -> bool:
        """Whether SQLite's close, which folds the -wal back and removes it, would touch nothing of others.

        With another -shm they did not see our locks, and once they write into another -wal ours is not what the -shm
        speaks of. A -wal that is merely gone still holds what we acknowledged. Of a database that moved SQLite itself
        keeps its hands off.
        """
        if self._known is None:
            return True
        wal, shm = (_look_at(path) for path in self._paths[1:])
        if shm is None or _inode(shm) != self._known[2]:
            return False
        return wal is None or not wal.st_size or _inode(wal) == self._known[1]

    def _stat(self) -> _Inodes:
        try:
            found = [os.stat(path) for path in self._paths]
        except OSError as error:
            raise FileReplaced(f"{error.filename} was moved or deleted while open ({error.strerror})") from error
        self.wal_bytes = found[1].st_size
        return tuple(map(_inode, found))


def _look_at(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
