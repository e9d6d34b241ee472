"""The inbox: what everybody but the owner says about a session, and how its owner takes it (§8). Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .events import NewEvent
from .plan import Op, Params, Plan, Query, Select
from .rows import encode_row, read_payload
from .writes import RunIds


@dataclass(frozen=True, slots=True)
class InboxRow:
    """Something for the owner."""

    number: int
    stream_pk: int
    kind: str
    request_id: str | None
    type: str
    payload: str

    def event(self) -> NewEvent:
        """A waiting event, as live readers see it once it is recorded."""
        return NewEvent(self.type, read_payload(self.payload.encode()) or {})

    def reason(self) -> str:
        """Why somebody wants the run to stop."""
        value = (read_payload(self.payload.encode()) or {}).get("reason", "")
        return value if isinstance(value, str) else ""


def waiting(session_pk: int, limit: int = 256) -> Query[list[InboxRow]]:
    """What waits for the owner, oldest first."""
    return Query(
        (Select("inbox_list", {"session_pk": session_pk, "limit": limit}),),
        lambda rows: [InboxRow(*row) for row in rows[0]],
    )


def tell_owner(
    stream_pk: int,
    kind: str,
    payload: Mapping[str, object],
    *,
    now_ms: int,
    type: str = "",
    request_id: str | None = None,
) -> Plan:
    """An inbox row for whoever owns the session: an event, a cancel, an interrupt."""
    row: Params = {
        "stream_pk": stream_pk,
        "kind": kind,
        "request_id": request_id,
        "ts_ms": now_ms,
        "type": type or kind,
        "payload": encode_row(payload),
    }
    return Plan((Op("inbox_add", (row,)),), durable=True)


def take(ids: RunIds, rows: Sequence[tuple[int, int, str, str]], now_ms: int) -> Plan:
    """Turn waiting events (inbox number, stream, type, payload text) into recorded ones; drop the inbox rows."""
    events = tuple[Params, ...](
        {
            "stream_pk": stream_pk,
            "run_id": None,
            "fence": ids.fence,
            "ts_ms": now_ms,
            "type": type_,
            "payload": payload,
        }
        for _, stream_pk, type_, payload in rows
    )
    return Plan((Op("event_append", events),)) + drop(ids, [number for number, *_ in rows])


def drop(ids: RunIds, numbers: Sequence[int]) -> Plan:
    """These inbox rows have been dealt with."""
    rows = tuple[Params, ...]({"inbox_pk": number, "fence": ids.fence} for number in numbers)
    return Plan((Op("inbox_remove", rows, expect=len(rows), refusal="OWNERSHIP_LOST"),))
