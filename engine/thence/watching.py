"""Questions of those who watch: events, provisional pieces, traces, and how much is in the file (§9, §10). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .events import Event, EventPage, NewEvent, page_of
from .plan import Params, Query, Row, Rows, Select
from .rows import read_payload, read_text, readable
from .runs import TraceEvent

PIECES = 1000


def event_page(stream_pk: int, after: int | None, limit: int, metadata: dict[str, Any]) -> Query[EventPage | None]:
    """A page of a stream's events after a cursor, in one snapshot; None when the stream is not kept."""
    if after is None:
        page = Select("event_page_from_start", {"stream_pk": stream_pk, "limit": limit + 1})
    else:
        page = Select("event_page", {"stream_pk": stream_pk, "after": after, "limit": limit + 1})

    def value(results: Sequence[Rows]) -> EventPage | None:
        if not results[1]:
            return None
        first, latest = results[1][0]
        events = tuple(_event(row, metadata) for row in results[0][:limit])
        return page_of(events, first, latest, after, more=len(results[0]) > limit)

    return Query((page, Select("stream_span", {"stream_pk": stream_pk})), value)


def _event(row: Row, metadata: dict[str, Any]) -> Event:
    sequence, kind, ts_ms, data = row
    payload = read_payload(data)
    where = {**metadata, "sequence": sequence, "timestamp_ms": ts_ms}
    return Event(read_text(kind), readable(data) if payload is None else payload, where, damaged=payload is None)


def stream_end(stream_pk: int) -> Query[tuple[str, bool, str | None] | None]:
    """(status, superseded, owner) of a run, or None when it is not kept."""
    return Query(
        (Select("stream_end", {"stream_pk": stream_pk}),),
        lambda rows: (rows[0][0][0], bool(rows[0][0][1]), rows[0][0][2]) if rows[0] else None,
    )


def deltas(stream_pk: int, after: int, limit: int = PIECES) -> Query[list[tuple[int, str, NewEvent]]]:
    """Provisional pieces after a cursor: (number, step, event)."""
    params: Params = {"stream_pk": stream_pk, "after": after, "limit": limit}
    return Query(
        (Select("delta_list", params),),
        lambda rows: [
            (n, read_text(step), NewEvent(read_text(kind), readable(data))) for n, step, kind, data in rows[0]
        ],
    )


def traces(session_pk: int) -> Query[list[TraceEvent]]:
    """Traces of a session that are kept, oldest first."""
    return Query(
        (Select("trace_list", {"session_pk": session_pk}),),
        lambda rows: [TraceEvent(n, run_id, ts, readable(data)) for n, run_id, ts, data in rows[0]],
    )


STATS = (
    "sessions",
    "run_ids",
    "runs",
    "facts",
    "events",
    "traces",
    "blobs",
    "blob_bytes",
    "inbox",
    "calls_in_flight",
    "checkpoints",
)


@dataclass(frozen=True, slots=True)
class Health:
    """What the file says about itself. ``owners``: (owner, pid, program, since) as they introduced themselves."""

    journal_mode: str
    waits_open: int
    inbox: int
    owners: list[tuple[str, int, str, int]]


def health() -> Query[Health]:
    """What a doctor asks."""
    return Query(
        (Select("journal_mode", {}), Select("waiting_count", {}), Select("owner_list", {})),
        lambda rows: Health(rows[0][0][0], rows[1][0][0], rows[1][0][1], [(o, p, n, s) for o, p, n, s in rows[2]]),
    )


def stats() -> Query[dict[str, int]]:
    """How much is in the file."""
    return Query((Select("stats", {}),), lambda rows: dict(zip(STATS, rows[0][0], strict=True)))
