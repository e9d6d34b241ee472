"""Questions to the file as values: named reads and what their rows mean (§8, §10). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from .chat import Usage
from .codec import chain, decode
from .errors import StoreError
from .facts import Fact, NewFact
from .identity import TAG_NAMES, DurableMemoryBinding, Tags
from .limits import RETENTION_NAMES, Retention
from .plan import Params, Query, Row, Rows, Select, SqlValue
from .runs import Run
from .writes import BEGINNING, Head

PAGE = 1000
RESTORE = "the file is damaged: restore a backup, or read what is left with sqlite3"


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as the file holds it."""

    session_pk: int
    session_id: str
    workspace: str
    tags: Tags
    created_ms: int
    live_branch: int
    owner: str | None
    fence: int
    forked_from: str | None
    retention: Retention
    run_count: int
    options: dict[str, Any]
    requires: tuple[str, ...]
    durable_memory: DurableMemoryBinding | None


@dataclass(frozen=True, slots=True)
class LoggedFact:
    """A stored fact with its decoded value."""

    fact: Fact
    new: NewFact
    hash: bytes


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest run of a session; one that was evicted has ended, and says ``failed``."""

    run_id: str
    run_pk: int
    status: str
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Whose run an id is."""

    run_id: str
    run_pk: int
    session_id: str
    first_seq: int
    input_sha256: str


def session(session_id: str) -> Query[SessionRow | None]:
    """One session by its id."""
    return Query(
        (Select("session_get", {"session_id": session_id}),),
        lambda rows: _session(rows[0][0]) if rows[0] else None,
    )


def session_without_index(session_id: str) -> Query[bool]:
    """Whether the table holds a session that :func:`session` did not find: damage must not look like absence."""
    return Query((Select("session_without_index", {"session_id": session_id}),), lambda rows: bool(rows[0][0][0]))


def sessions(filters: dict[str, str | None], after_pk: int = 0, limit: int = PAGE) -> Query[list[SessionRow]]:
    """Sessions in the order they were made. A tag in ``filters`` must be equal; None is: untagged."""
    params: dict[str, SqlValue] = {"after_pk": after_pk, "limit": limit}
    for name in TAG_NAMES:
        params[name] = filters.get(name)
        params[f"any_{name}"] = int(name not in filters)
    return Query((Select("session_list", params),), lambda rows: [_session(row) for row in rows[0]])


def _session(row: Row) -> SessionRow:
    if not isinstance(row[2], str) or not isinstance(row[8], int):
        raise StoreError(f"the row of session '{row[1]}' cannot be read; {RESTORE}")
    memory = None if row[20] is None else DurableMemoryBinding(**orjson.loads(row[20]))
    return SessionRow(
        session_pk=row[0],
        session_id=row[1],
        workspace=row[2],
        tags=Tags(*row[3:7]),
        created_ms=row[7],
        live_branch=row[8],
        owner=row[9],
        fence=row[10],
        forked_from=row[11],
        retention=Retention(**dict(zip(RETENTION_NAMES, row[12:17], strict=True))),
        run_count=row[17],
        options=orjson.loads(row[18]),
        requires=tuple(orjson.loads(row[19])),
        durable_memory=memory,
    )


def facts(
    branch_pk: int, after: Head = BEGINNING, limit: int = PAGE, session_pk: int | None = None
) -> Query[list[LoggedFact]]:
    """Visible facts of a branch behind ``after``, with their values; checked to be all there are, in one chain.

    ``session_pk`` is whose branch it must be. A seq without its hash (``Head(seq, b"")``) leaves the first link open.
    """
    params: Params = {"branch_pk": branch_pk, "after_seq": after.seq, "up_to_seq": after.seq + limit}
    selects = (
        Select("fact_list", params),
        Select("fact_blobs", params),
        Select("branch_head", {"branch_pk": branch_pk}),
    )

    def value(results: Sequence[Rows]) -> list[LoggedFact]:
        if not results[2] or (session_pk is not None and results[2][0][0] != session_pk):
            raise StoreError(f"the session's branch {branch_pk} is not its own; {RESTORE}")
        _, head_seq, head_hash, *_ = results[2][0]
        found = _facts(results)
        _check_whole(found, after, Head(head_seq, head_hash), limit)
        return found

    return Query(selects, value)


def _check_whole(found: list[LoggedFact], after: Head, head: Head, limit: int) -> None:
    """Every seq up to the head is there, and each fact goes on from the one before it."""
    at = after
    for one in found:
        fact = one.fact
        if fact.seq != at.seq + 1 or (at.hash and bytes.fromhex(fact.prev_hash) != at.hash):
            raise StoreError(f"the log is not whole: fact {fact.seq} does not go on from seq {at.seq}; {RESTORE}")
        at = Head(fact.seq, one.hash)
    complete = at == head if at.hash else at.seq == head.seq
    if not (complete or (len(found) == limit and at.seq < head.seq) or after.seq > head.seq):
        raise StoreError(f"the log is not whole: it ends at seq {at.seq} and should end at {head.seq}; {RESTORE}")


def _facts(results: Sequence[Rows]) -> list[LoggedFact]:
    blobs: dict[str, bytes] = dict(results[1])
    return [_fact(row, blobs) for row in results[0]]


def _fact(row: Row, blobs: dict[str, bytes]) -> LoggedFact:
    seq, kind, key, cause, run_id, prev_hash, digest, text = row
    try:
        sound = chain(prev_hash, seq, kind, key, cause, text) == digest
        payload = decode(kind, text, blobs.__getitem__) if sound else None
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"fact {seq} ('{key}') cannot be read: {error!r}; {RESTORE}") from error
    if payload is None:
        raise StoreError(f"fact {seq} ('{key}') was changed: its hash does not fit; {RESTORE}")
    fact = Fact(seq, kind, key, cause, payload, run_id, prev_hash.hex(), digest.hex(), text)
    return LoggedFact(fact, NewFact(key, cause, payload), digest)


def fact_by_key(branch_pk: int, key: str) -> Query[LoggedFact | None]:
    """One visible fact of a branch by its key."""
    params: Params = {"branch_pk": branch_pk, "key": key}
    return Query(
        (Select("fact_by_key", params), Select("fact_by_key_blobs", params)),
        lambda rows: _facts(rows)[0] if rows[0] else None,
    )


def head(branch_pk: int) -> Query[Head | None]:
    """How far a branch has come."""
    return Query(
        (Select("branch_head", {"branch_pk": branch_pk}),),
        lambda rows: Head(rows[0][0][1], rows[0][0][2]) if rows[0] else None,
    )


def runs(session_pk: int) -> Query[list[Run]]:
    """Runs of a session that are kept, oldest first."""
    return Query((Select("run_list", {"session_pk": session_pk}),), lambda rows: [_run(row) for row in rows[0]])


def run(run_id: str) -> Query[Run | None]:
    """One run by its id, if it is kept."""
    return Query((Select("run_get", {"run_id": run_id}),), lambda rows: _run(rows[0][0]) if rows[0] else None)


def run_identity(run_id: str) -> Query[RunIdentity | None]:
    """Whose run an id is, also after the run was evicted."""
    return _identity("run_identity_get", run_id)


def newest_run(run_id: str) -> Query[RunIdentity | None]:
    """The run itself, or the newest that goes on from it."""
    return _identity("run_newest", run_id)


def oldest_run(run_id: str) -> Query[RunIdentity | None]:
    """The run that began the turn which this one goes on with."""
    return _identity("run_oldest", run_id)


def _identity(statement: str, run_id: str) -> Query[RunIdentity | None]:
    return Query(
        (Select(statement, {"run_id": run_id}),),
        lambda rows: RunIdentity(*rows[0][0]) if rows[0] else None,
    )


def checkpoint_version(run_pk: int) -> Query[int | None]:
    """Schema version of a run's checkpoint, if it has one."""
    return Query(
        (Select("checkpoint_get", {"run_pk": run_pk}),),
        lambda rows: rows[0][0][0] if rows[0] else None,
    )


def unfinished() -> Query[list[tuple[str, str, str | None]]]:
    """Sessions whose newest run has not ended: (session id, run id, owner)."""
    return Query((Select("session_interrupted", {}),), lambda rows: [(s, r, o) for s, r, o in rows[0]])


def last_run(session_pk: int) -> Query[LastRun | None]:
    """The newest run of a session."""
    return Query(
        (Select("run_last", {"session_pk": session_pk}),),
        lambda rows: LastRun(*rows[0][0]) if rows[0] else None,
    )


def _run(row: Row) -> Run:
    status, superseded_by = row[2], row[3]
    return Run(
        id=row[0],
        session_id=row[1],
        status=status,
        state="superseded" if superseded_by else status,
        superseded_by=superseded_by,
        resumed_from=row[4],
        prompt=row[5],
        created_ms=row[6],
        updated_ms=row[7],
        ended_ms=row[8],
        rounds=row[9],
        tool_calls_count=row[10],
        usage=Usage(*row[11:16]),
        requests_without_usage=row[16],
        resumable=bool(row[17]),
        error_code=row[18],
        error_message=row[19],
        result_text=row[20],
        event_count=row[21] or 0,
        checkpoint_round=row[22],
        owner=row[23],
    )


def blob(session_pk: int, sha256: str) -> Query[bytes | None]:
    """The bytes of a blob that the session refers to."""
    return Query(
        (Select("blob_get", {"session_pk": session_pk, "sha256": sha256}),),
        lambda rows: rows[0][0][0] if rows[0] else None,
    )
