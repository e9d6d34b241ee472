"""Questions to the file as values: named reads and what their rows mean (§8, §10). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from .chat import Usage
from .errors import StoreError
from .facts import Fact, NewFact
from .identity import TAG_NAMES, DurableMemoryBinding, Tags
from .kept_state import KeptState
from .limits import RETENTION_NAMES, Retention
from .pages import PAGE, RESTORE, StoredFact, check_chain, new_fact, page
from .plan import Params, Query, Row, Rows, Select, SqlValue
from .runs import Run
from .writes import BEGINNING, Head

BY_TAG = ("correlation_id", "principal", "tenant_id", "agent_template_id")
"""Each tag has an index; that of the one which fewest sessions share, as a rule, comes first."""


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
    by = next((name for name in BY_TAG if filters.get(name) is not None), None)
    statement = "session_list" if by is None else f"session_list_by_{by}"
    return Query((Select(statement, params),), lambda rows: [_session(row) for row in rows[0]])


def _session(row: Row) -> SessionRow:
    if not isinstance(row[2], str) or not isinstance(row[8], int):
        raise StoreError(f"the row of session '{row[1]}' cannot be read; {RESTORE}")
    options: Any = orjson.loads(row[18])
    if not isinstance(options, dict):
        raise StoreError(f"the options of session '{row[1]}' cannot be read; {RESTORE}")
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
        options=cast("dict[str, Any]", options),
        requires=tuple(orjson.loads(row[19])),
        durable_memory=memory,
    )


def facts(
    branch_pk: int, after: Head = BEGINNING, limit: int = PAGE, session_pk: int | None = None
) -> Query[list[LoggedFact]]:
    """Visible facts of a branch behind ``after``, with their values; checked as :func:`~thence.pages.page` does."""
    query = page(branch_pk, after, limit, session_pk, "fact_list")

    def value(results: Sequence[Rows]) -> list[LoggedFact]:
        found = query.decode(results)
        return [_logged(fact, found.blobs) for fact in found.facts]

    return Query(query.selects, value)


def _logged(stored: StoredFact, blobs: Mapping[str, bytes]) -> LoggedFact:
    seq, kind, key, cause, run_id, prev_hash, digest, text = stored
    new = new_fact(stored, blobs)
    fact = Fact(seq, kind, key, cause, new.payload, run_id, prev_hash.hex(), digest.hex(), text)
    return LoggedFact(fact, new, digest)


def fact_by_key(branch_pk: int, key: str) -> Query[LoggedFact | None]:
    """One visible fact of a branch by its key."""
    params: Params = {"branch_pk": branch_pk, "key": key}
    return Query(
        (Select("fact_by_key", params), Select("fact_by_key_blobs", params)),
        _only_fact,
    )


def _only_fact(results: Sequence[Rows]) -> LoggedFact | None:
    for row in results[0]:
        check_chain([row], Head(row[0] - 1, b""))
        return _logged(row, dict(results[1]))
    return None


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


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where reading a log may begin: at the newest compaction (``seq``, and where what it kept stands; 0 for none); and
    the folded state that the session's newest checkpoint carries, if it carries one."""

    kept: KeptState | None
    seq: int = 0
    kept_from: int = 1
    kept_message: int | None = None


def beginning(branch_pk: int, session_pk: int | None) -> Query[Beginning]:
    """Where to begin with a branch of which nothing was read yet."""

    def value(results: Sequence[Rows]) -> Beginning:
        state = results[0]
        kept = KeptState(*state[0]) if state and state[0][1] is not None else None
        if not results[1]:
            return Beginning(kept)
        seq, kept_from, kept_message = results[1][0]
        # Nothing of this was checked yet. What makes no sense is read from the start, where its hash will tell.
        sound = isinstance(kept_from, int) and 1 <= kept_from <= seq
        return Beginning(kept, seq, kept_from if sound else 1, kept_message if isinstance(kept_message, int) else None)

    selects = (
        Select("checkpoint_state", {"session_pk": session_pk}),
        Select("fact_newest_compaction", {"branch_pk": branch_pk}),
    )
    return Query(selects, value)


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
