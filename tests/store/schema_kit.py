"""The file format and nothing else: a database made from ``schema/*.sql``, and the writes of an owner in plain SQL.

No code of the library is used here, so what these helpers can do any program with SQLite can do.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCHEMA = Path(__file__).parents[2] / "schema"
TERMINAL = ("completed", "failed", "cancelled")
GENESIS = bytes(32)

_EVENT = """
INSERT INTO event(id, off, bytes, fence, ts_ms, type, payload)
  SELECT t.stream_pk << 32 | t.event_count, t.event_bytes, length(CAST(:payload AS BLOB)), :fence,
         max(:ts_ms, t.last_ms), :type, :payload
  FROM stream t WHERE t.stream_pk = :stream_pk"""


def schema_sql(triggers: str | None = None) -> str:
    """The whole schema as one script, with ``triggers`` in the place of triggers.sql when given."""
    names = ("tables.sql", "views.sql")
    texts = [(SCHEMA / name).read_text(encoding="utf-8") for name in names]
    return "\n".join([*texts, triggers if triggers is not None else trigger_sql()])


def trigger_sql() -> str:
    return (SCHEMA / "triggers.sql").read_text(encoding="utf-8")


def fact_hash(prev: bytes, seq: int, kind: str, key: str, cause: str | None, payload: str) -> bytes:
    text = json.dumps(
        [seq, kind, key, cause, payload], ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(prev + text.encode()).digest()


def padded(size: int) -> str:
    """A JSON object of exactly ``size`` bytes (2 or more)."""
    return "{" + " " * (size - 2) + "}"


@contextmanager
def refused(code: str) -> Iterator[None]:
    """The block must be refused by a trigger with ``thence:<code>``."""
    with pytest.raises(sqlite3.IntegrityError, match=rf"^thence:{code}\b"):
        yield


class SchemaFile:
    """One database (in memory unless ``path`` is given) in autocommit; ``now`` is its clock, in ms."""

    def __init__(self, sql: str | None = None, path: str | Path = ":memory:") -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.executescript(sql if sql is not None else schema_sql())
        self.now = 1_000
        names = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
        self.tables = [name for (name,) in self.all(names)]

    def sql(self, text: str, *args: Any) -> sqlite3.Cursor:
        return self.db.execute(text, args)

    def all(self, text: str, *args: Any) -> list[tuple[Any, ...]]:
        return self.db.execute(text, args).fetchall()

    def one(self, text: str, *args: Any) -> Any:
        row = self.db.execute(text, args).fetchone()
        return None if row is None else row[0]

    def count(self, table: str) -> int:
        return int(self.one(f"SELECT count(*) FROM {table}"))

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table, to show that a refused statement changed nothing."""
        return {table: self.all(f"SELECT * FROM {table} ORDER BY 1, 2") for table in self.tables}

    # ------------------------------------------------------------------ sessions and branches
    def session(self, session_id: str = "s", *, owner: Any = "me", **caps: Any) -> int:
        """A session with its channel and a root branch; caps that are not given are unbounded."""
        pk = self.insert("session", session_id=session_id, workspace="/w", created_ms=self.now, fence=1, owner=owner)
        self.insert("session_option", session_pk=pk, options="{}", requires="[]")
        self.insert("stream", stream_pk=-pk, session_pk=pk)
        branch = self.insert("branch", session_pk=pk, head_seq=0, head_hash=GENESIS)
        self.sql("UPDATE session SET live_branch = ? WHERE session_pk = ?", branch, pk)
        self.set_caps(pk, **caps)
        return pk

    def set_caps(self, session_pk: int, **caps: int | None) -> None:
        for name, value in caps.items():
            self.sql(f"UPDATE session SET {name} = ? WHERE session_pk = ?", value, session_pk)

    def claim(self, session_pk: int, owner: str | None) -> None:
        self.sql("UPDATE session SET owner = ?, fence = fence + 1 WHERE session_pk = ?", owner, session_pk)

    def fence(self, session_pk: int) -> int:
        return int(self.one("SELECT fence FROM session WHERE session_pk = ?", session_pk))

    def live_branch(self, session_pk: int) -> int:
        return int(self.one("SELECT live_branch FROM session WHERE session_pk = ?", session_pk))

    def branch_from(self, parent_pk: int, at_seq: int) -> int:
        """A branch that shares its parent's facts up to ``at_seq``; it becomes the session's live one."""
        session_pk = self.one("SELECT session_pk FROM branch WHERE branch_pk = ?", parent_pk)
        seen = self.all("SELECT ancestor_pk, first_seq, last_seq FROM ancestry WHERE branch_pk = ?", parent_pk)
        own_first = self.one("SELECT first_seq FROM branch WHERE branch_pk = ?", parent_pk)
        stretches = [(a, f, min(last, at_seq)) for a, f, last in seen if f <= at_seq]
        if own_first <= at_seq:
            stretches.append((parent_pk, own_first, at_seq))
        head = self.one("SELECT hash FROM fact WHERE branch_pk = ? AND seq = ?", stretches[-1][0], at_seq)
        pk = self.insert(
            "branch", session_pk=session_pk, parent_pk=parent_pk, first_seq=at_seq + 1, head_seq=at_seq, head_hash=head
        )
        for ancestor, first, last in stretches:
            self.insert("ancestry", branch_pk=pk, ancestor_pk=ancestor, first_seq=first, last_seq=last)
        self.sql("UPDATE session SET live_branch = ? WHERE session_pk = ?", pk, session_pk)
        return pk

    def fact(self, branch_pk: int, key: str, payload: Any = "{}", verb: Any = "INSERT", **other: Any) -> int:
        """Append one fact, chained; ``other`` overrides columns, ``verb`` the conflict clause. Returns its id."""
        seq, prev, session_pk = self.all(
            "SELECT head_seq + 1, head_hash, session_pk FROM branch WHERE branch_pk = ?", branch_pk
        )[0]
        row: dict[str, Any] = {
            "id": branch_pk << 32 | seq, "run_pk": 1, "fence": self.fence(session_pk), "ts_ms": self.now,
            "kind": "user.message", "key": key, "cause": None, "prev_hash": prev, "blobs": None, "payload": payload,
        }  # fmt: skip
        row["hash"] = fact_hash(prev, seq, other.get("kind", "user.message"), key, None, payload)
        return self.insert("fact", verb=verb, **(row | other))

    # ------------------------------------------------------------------ runs and what they leave
    def run_identity(self, session_pk: int, run_id: str | None = None, *, resumed_from: int | None = None) -> int:
        number = int(self.one("SELECT count(*) FROM run_identity WHERE session_pk = ?", session_pk))
        return self.insert(
            "run_identity", run_id=run_id or f"run-{session_pk}-{number}", session_pk=session_pk,
            branch_pk=self.live_branch(session_pk), first_seq=1, input_sha256="00", resumed_from=resumed_from,
        )  # fmt: skip

    def run(self, session_pk: int, run_id: str | None = None, *, resumed_from: int | None = None) -> int:
        """An executing run with its id and its stream, as admission writes them."""
        run_pk = self.run_identity(session_pk, run_id, resumed_from=resumed_from)
        self.insert("stream", stream_pk=run_pk, session_pk=session_pk)
        self.insert(
            "run", run_pk=run_pk, session_pk=session_pk, fence=self.fence(session_pk), status="executing",
            run_no=self.one("SELECT run_count FROM session WHERE session_pk = ?", session_pk),
            created_ms=self.now, updated_ms=self.now, prompt="p",
        )  # fmt: skip
        return run_pk

    def end_run(self, run_pk: int, status: str = "completed", resumable: int = 0) -> None:
        self.sql(
            """UPDATE run SET status = ?, resumable = ?, ended_ms = ?,
                 fence = (SELECT fence FROM session s WHERE s.session_pk = run.session_pk) WHERE run_pk = ?""",
            status, resumable, self.now, run_pk,
        )  # fmt: skip

    def event(self, session_pk: int, stream_pk: int, payload: str = "{}", fence: int | None = None) -> None:
        row = {"stream_pk": stream_pk, "payload": payload, "ts_ms": self.now, "type": "t"}
        self.db.execute(_EVENT, row | {"fence": self.fence(session_pk) if fence is None else fence})

    def delta(self, stream_pk: int, number: int = 0, fence: int = 1) -> None:
        self.insert("delta", id=stream_pk << 32 | number, fence=fence, step="k", type="t", payload="{}")

    def checkpoint(self, session_pk: int, run_pk: int, **other: Any) -> None:
        row: dict[str, Any] = {
            "run_pk": run_pk, "session_pk": session_pk, "branch_pk": self.live_branch(session_pk), "seq": 1,
            "round": 1, "fence": self.fence(session_pk), "ts_ms": self.now, "schema_version": 1, "counters": "{}",
            "usage": "{}",
        }  # fmt: skip
        self.insert("checkpoint", **(row | other))

    def inflight(self, session_pk: int, run_pk: int, call_key: str, **other: Any) -> int:
        row: dict[str, Any] = {
            "id": session_pk << 32 | int(other.pop("position", 0)), "run_pk": run_pk, "fence": self.fence(session_pk),
            "call_key": call_key, "tool": "t", "state": "started", "started_ms": self.now,
        }  # fmt: skip
        return self.insert("inflight", **(row | other))

    def wait(self, session_pk: int, run_pk: int, wait_id: str, **other: Any) -> int:
        row: dict[str, Any] = {
            "session_pk": session_pk, "run_pk": run_pk, "wait_id": wait_id, "kind": "confirmation", "subject": "s",
            "digest": "d", "fence": self.fence(session_pk), "opened_ms": self.now, "payload": "{}",
        }  # fmt: skip
        return self.insert("wait", **(row | other))

    def trace(self, session_pk: int, **other: Any) -> None:
        first = session_pk << 32
        next_id = self.one("SELECT coalesce(max(id) + 1, ?) FROM trace WHERE session_pk = ?", first, session_pk)
        row: dict[str, Any] = {
            "id": next_id, "run_pk": 1, "fence": self.fence(session_pk), "ts_ms": self.now,
            "kind": "tool", "name": "t", "payload": "{}",
        }  # fmt: skip
        self.insert("trace", **(row | other))

    def task(self, session_pk: int, task_id: str, verb: str = "INSERT", **other: Any) -> int:
        row: dict[str, Any] = {
            "session_pk": session_pk, "task_id": task_id, "agent": "a", "description": "d", "status": "running",
            "fence": self.fence(session_pk), "started_ms": self.now, "updated_ms": self.now,
        }  # fmt: skip
        return self.insert("task", verb=verb, **(row | other))

    # ------------------------------------------------------------------ the inbox
    def event_in(self, verb: str = "INSERT", **columns: Any) -> None:
        """What another program writes: any of run_id, session_id, type, payload, request_id, ts_ms."""
        self.insert("event_in", verb=verb, **({"type": "t", "payload": "{}"} | columns))

    def control(self, session_pk: int, stream_pk: int, kind: str, **other: Any) -> None:
        """What somebody who is not the owner asks of it: cancel, interrupt, steer, answer."""
        row = {"waiting_no": 0, "off": 0, "bytes": 2, "ts_ms": self.now, "type": kind, "payload": "{}"}
        self.insert("inbox", **({"session_pk": session_pk, "stream_pk": stream_pk, "kind": kind} | row | other))

    def drain(self, session_pk: int, limit: int = 1_000_000) -> None:
        """What the owner does at a safe point: number the oldest waiting events and clear them."""
        rows = self.all(
            """SELECT inbox_pk, stream_pk, payload FROM inbox WHERE session_pk = ? AND kind = 'event'
               ORDER BY inbox_pk LIMIT ?""", session_pk, limit)  # fmt: skip
        for inbox_pk, stream_pk, payload in rows:
            self.event(session_pk, stream_pk, payload)
            self.sql("DELETE FROM inbox WHERE inbox_pk = ?", inbox_pk)

    def insert(self, table: str, verb: Any = "INSERT", **row: Any) -> int:
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        cursor = self.db.execute(f"{verb} INTO {table}({names}) VALUES({marks})", tuple(row.values()))
        return cursor.lastrowid or 0
