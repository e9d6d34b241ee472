"""Plain `sqlite3` eyes on a file that some process left (§4, §7)."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SESSION = "s"


class Eyes:
    """Plain `sqlite3`, reading and, where a test damages a file on purpose, writing."""

    def __init__(self, db: Path) -> None:
        self.db = sqlite3.connect(f"file:{db}?mode=rw", uri=True, isolation_level=None, timeout=30)
        self.db.execute("PRAGMA wal_autocheckpoint=0")

    def __enter__(self) -> Eyes:
        return self

    def __exit__(self, *exc: object) -> None:
        self.db.close()

    def rows(self, sql: str, *values: object) -> list[Any]:
        return self.db.execute(sql, values).fetchall()

    def one(self, sql: str, *values: object) -> Any:
        found = self.db.execute(sql, values).fetchone()
        return None if found is None else found[0]


def head(db: Path, session: str = SESSION) -> str:
    """The head hash of a session's live branch: equal for equal logs (§4)."""
    with Eyes(db) as eyes:
        return str(eyes.one("SELECT head_hash FROM sessions WHERE session_id = ?", session))


def run_rows(db: Path) -> dict[str, Any]:
    """Every run's own row and identity, whole."""
    with Eyes(db) as eyes:
        found = eyes.rows("SELECT i.run_id, i.*, r.* FROM run_identity i LEFT JOIN run r USING(run_pk) ORDER BY 1")
    return {row[0]: row for row in found}


def last_run(db: Path, session: str = SESSION) -> str | None:
    """The id of the newest run."""
    with Eyes(db) as eyes:
        newest: str | None = eyes.one(
            "SELECT run_id FROM run_identity i JOIN session s USING(session_pk) WHERE session_id = ?"
            " ORDER BY run_pk DESC",
            session,
        )
        return newest


def dump(db: Path) -> list[str]:
    """Everything that is in the file, but for who has it open."""
    with Eyes(db) as eyes:
        kept = []
        for line in eyes.db.iterdump():
            if not line.startswith('INSERT INTO "owner"'):
                kept.append(line)
        return kept


@dataclass(frozen=True, slots=True)
class Rest:
    """What a dead process left: facts on the live branch, and calls in flight by state."""

    kinds: tuple[str, ...]
    settled: frozenset[str]
    landed: frozenset[str]
    started: Mapping[str, str | None]

    @property
    def closed(self) -> bool:
        return not self.kinds or self.kinds[-1] == "turn.ended"


def rest(db: Path) -> Rest:
    """Read what is there, with nothing but SQLite."""
    with Eyes(db) as eyes:
        facts = eyes.rows("SELECT kind, key FROM facts WHERE session_id = ? ORDER BY seq", SESSION)
        flight = eyes.rows("SELECT call_key, effect, state FROM inflight")
    return Rest(
        tuple(kind for kind, _ in facts),
        frozenset(key for kind, key in facts if kind in ("tool.result", "budget.denied")),
        frozenset(key for key, _, state in flight if state == "landed"),
        {key: effect for key, effect, state in flight if state == "started"},
    )
