"""Looking at a file's health without touching it (§13). The flow is driven by either face, or by a mere reader."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ..diagnosis import Diagnosis, OwnerSeen, problems
from ..effects import Flow, Read
from ..errors import SessionError
from ..identity import Scope
from ..reads import unfinished
from ..store import locks
from ..store.checkpoint import has_wal_reset_bug
from ..watching import health


def diagnose(path: Path | None, stuck: int | None, *, mode_known: bool = True) -> Flow[Diagnosis]:
    """Look at the file at ``path``, None for one in memory. ``stuck`` is what this process knows of itself;
    ``mode_known``: SQLite was not told that nobody writes the file, and so looked at its journal mode."""
    seen = yield from Read(health())
    mode = seen.journal_mode if mode_known else "unknown"
    owners = tuple(
        OwnerSeen(owner, pid, program, since, "alive" if path is None else locks.look(path, owner))
        for owner, pid, program, since in seen.owners
    )
    life = {one.owner: one.life for one in owners}
    left = interrupted = 0
    for _, _, owner in (yield from Read(unfinished())):
        # An owner without a row has said goodbye or was never introduced: its lock file alone can tell.
        known = None if owner is None else life.get(owner) or ("dead" if path is None else locks.look(path, owner))
        interrupted += known in (None, "dead")
        left += known == "dead"
    wal = _size(path, "-wal")
    return Diagnosis(
        path=None if path is None else str(path),
        sqlite_version=sqlite3.sqlite_version,
        wal_reset_bug=has_wal_reset_bug(sqlite3.sqlite_version_info),
        journal_mode=mode,
        file_bytes=_size(path, ""),
        wal_bytes=wal,
        owners=owners,
        interrupted_runs=interrupted,
        orphaned_runs=left,
        waits_open=seen.waits_open,
        inbox=seen.inbox,
        stuck_guard_threads=stuck,
        problems=problems(journal_mode=mode, wal_bytes=wal, owners=owners, orphaned_runs=left, stuck=stuck),
    )


def diagnose_all(scope: Scope, path: Path | None, stuck: int | None) -> Flow[Diagnosis]:
    """:func:`diagnose`, for an agent. Raises SessionError for a scoped one: nearly all of it is of other sessions."""
    if scope.tags:
        raise SessionError("doctor() looks at the whole file: ask the agent that is not scoped")
    return (yield from diagnose(path, stuck))


def _size(path: Path | None, suffix: str) -> int:
    try:
        return 0 if path is None else Path(f"{path}{suffix}").stat().st_size
    except FileNotFoundError:
        return 0
