"""When and how the WAL is folded back into the database (§8).

SQLite before 3.51.3 (3.50.7, 3.44.6) may lose committed rows when a checkpoint runs beside a commit that restarts
the WAL. No connection of ours checkpoints by itself; this one does it while the writer holds the write lock, so that
nobody can restart the WAL. Under that lock only PASSIVE works; with a repaired SQLite no lock is needed.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from .connect import MIB, connect

SOFT_BYTES = 4 * MIB
"""Written since the last checkpoint: fold the WAL back when nobody waits to write."""

HARD_BYTES = 16 * MIB
"""Fold it back now."""

WARN_BYTES = 64 * MIB
"""A WAL this large means that some reader holds an old snapshot."""

_log = logging.getLogger("thence.store")


def has_wal_reset_bug(version: tuple[int, ...]) -> bool:
    """Whether SQLite ``version`` can lose commits to a checkpoint beside a writer."""
    if version >= (3, 51, 3):
        return False
    return not any(version[:2] == fixed[:2] and version >= fixed for fixed in ((3, 50, 7), (3, 44, 6)))


def wal_limit_bytes(version: tuple[int, ...]) -> int:
    """What a WAL is cut to when it starts over; guarded checkpoints cannot truncate, so the limit must."""
    return 4 * MIB if has_wal_reset_bug(version) else 64 * MIB


@dataclass(frozen=True, slots=True)
class Folded:
    """What one checkpoint did. ``complete`` says that every frame is in the database now."""

    complete: bool
    frames: int


class Checkpointer:
    """Decides from an estimate of the bytes written, and runs the checkpoint on a connection of its own."""

    def __init__(self, target: str, version: tuple[int, ...] = sqlite3.sqlite_version_info) -> None:
        self.guarded = has_wal_reset_bug(version)
        self.count = 0
        self._target = target
        self._connection: sqlite3.Connection | None = None
        self._written: int = 0
        self._guessed = 0
        self._wal_bytes = 0
        self._retry_at: int = 0
        self._warned = False

    def found(self, wal_bytes: int) -> None:
        """A -wal of this length was there before we wrote anything: a process died, or others are at work. It is folded
        back with what we write ourselves, not before our first commit is acknowledged, unless it is large."""
        if wal_bytes < HARD_BYTES:
            self._wal_bytes = wal_bytes

    def wrote(self, pages: int, wal_bytes: int) -> None:
        """Note a commit of about ``pages`` pages; when last seen, perhaps some commits ago, the -wal file was
        ``wal_bytes`` long."""
        self._written += pages * 4096
        self._guessed += pages * 4096
        if wal_bytes != self._wal_bytes:
            self._written += max(0, wal_bytes - self._wal_bytes - self._guessed)
            self._wal_bytes = wal_bytes
            self._guessed = 0
            if wal_bytes < WARN_BYTES:
                self._warned = False
            elif not self._warned:
                self._warned = True
                _log.warning("the -wal is %d MiB: some reader holds an old snapshot open", wal_bytes // MIB)

    def due(self, *, idle: bool) -> bool:
        """Whether to checkpoint now; ``idle`` says that nobody waits to write."""
        return self._written >= max(SOFT_BYTES if idle else HARD_BYTES, self._retry_at)

    def run(self, writer: sqlite3.Connection, rollback: Callable[[], None]) -> Folded:
        """Fold the WAL back. ``writer`` is in no transaction, before and after; ``rollback`` sees to that.

        Raises:
            sqlite3.Error: the checkpoint failed; the WAL still holds everything.
        """
        try:
            _, log, done = self._fold(writer, rollback)
        except sqlite3.Error:
            # the connection may be what is wrong; and trying again at every commit would cost as much as it says
            broken = self.take()
            if broken is not None:
                broken.close()
            self._retry_at = self._written + SOFT_BYTES
            raise
        self.count += 1
        # beside a reader's snapshot it reports success with frames left: only the counts tell
        complete = log == done
        if complete:
            self._written = self._retry_at = 0
        else:
            # pressing on while a reader holds it back would cost a sync per commit for nothing
            self._retry_at = self._written + SOFT_BYTES
        return Folded(complete, log)

    def _fold(self, writer: sqlite3.Connection, rollback: Callable[[], None]) -> tuple[int, int, int]:
        if self._connection is None:
            # it must not wait: what a reader holds back now is folded next time
            self._connection = connect(self._target, busy_timeout_s=0)
            self._connection.execute("PRAGMA wal_autocheckpoint=0")
            self._connection.execute("PRAGMA synchronous=FULL")
        if self.guarded:
            try:
                writer.execute("BEGIN IMMEDIATE")
                row = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            finally:
                rollback()
        elif self._written >= HARD_BYTES:
            row = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        else:
            row = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        busy, log, done = row
        return busy, log, done

    def take(self) -> sqlite3.Connection | None:
        """Hand the connection over to whoever closes it."""
        connection, self._connection = self._connection, None
        return connection
