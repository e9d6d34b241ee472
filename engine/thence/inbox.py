"""The inbox: what everybody but the owner says about a session, and how its owner takes it (§8). Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .events import NewEvent
from .plan import Op, Params, Plan, Query, Select
from .rows import encode_row, read_payload, read_text, readable
from .writes import RunIds

PAGE = 256
"""How much of the inbox is read at once."""


@dataclass(frozen=True, slots=True)
class InboxRow:
    """Something for the owner."""

    number: int
    stream_pk: int
    kind: str
    type: bytes
    payload: bytes

    def event(self) -> NewEvent:
        """A waiting event, as live readers see it once it is recorded."""
        return NewEvent(read_text(self.type), readable(self.payload))

    def deadline_ms(self) -> int | None:
        """Until when running tools may land, where it was said: Unix epoch milliseconds."""
        value = (read_payload(self.payload) or {}).get("deadline_ms")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def reason(self) -> str:
        """Why somebody wants the run to stop."""
        value = (read_payload(self.payload) or {}).get("reason", "")
        return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class Steer:
    """A message that waits for the turn to take it."""

    number: int
    request_id: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the owner finds when it looks; ``steered`` says that messages wait beside ``rows``."""

    rows: list[InboxRow]
    steered: bool


def waiting(session_pk: int, limit: int = PAGE) -> Query[Waiting]:
    """What waits for the owner, oldest first. Messages stay where they are until the turn can take them, and must not
    keep an order behind them from being seen."""
    by_session: Params = {"session_pk": session_pk}
    return Query(
        (Select("inbox_list", {**by_session, "limit": limit}), Select("inbox_steered", by_session)),
        lambda rows: Waiting([InboxRow(*row) for row in rows[0]], bool(rows[1][0][0])),
    )


def steers(session_pk: int, limit: int = PAGE) -> Query[list[Steer]]:
    """Messages for the turn that is open, oldest first."""
    return Query(
        (Select("inbox_steers", {"session_pk": session_pk, "limit": limit}),),
        lambda rows: [_steer(*row) for row in rows[0]],
    )


def _steer(number: int, request_id: bytes | None, payload: bytes) -> Steer:
    # Our own code wrote {"text": ...}. Of anything else the model gets to read what there is: nothing is lost unheard.
    text = (read_payload(payload) or {}).get("text")
    return Steer(
        number,
        None if request_id is None else read_text(request_id),
        text if isinstance(text, str) else read_text(payload),
    )


def request_known(session_pk: int, request_id: str) -> Query[bool]:
    """Whether somebody has said something under this request id before."""
    params: Params = {"session_pk": session_pk, "request_id": request_id}
    return Query((Select("request_known", params),), lambda rows: bool(rows[0][0][0]))


def steer(stream_pk: int, text: str, *, now_ms: int, request_id: str | None) -> Plan:
    """A message for a run. Its number comes back; none when nobody works on the run, or the request is known."""
    row: Params = {
        "stream_pk": stream_pk,
        "request_id": request_id,
        "ts_ms": now_ms,
        "payload": encode_row({"text": text}),
    }
    return Plan((Op("inbox_steer", (row,), returning=True),), durable=True)


def forget_steers(ids: RunIds) -> Op:
    """The turn that messages wait for is over, or gives way to a new one."""
    return Op("inbox_forget_steers", ({"session_pk": ids.session_pk, "fence": ids.fence},))


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


def take(ids: RunIds, numbers: Sequence[int], now_ms: int) -> Plan:
    """Turn the events that wait under these inbox numbers into recorded ones."""
    rows = tuple[Params, ...]({"inbox_pk": number, "fence": ids.fence, "ts_ms": now_ms} for number in numbers)
    return Plan((Op("event_take", rows),)) + drop(ids, numbers)


def drop(ids: RunIds, numbers: Sequence[int]) -> Plan:
    """These inbox rows have been dealt with."""
    rows = tuple[Params, ...]({"inbox_pk": number, "fence": ids.fence} for number in numbers)
    return Plan((Op("inbox_remove", rows, expect=len(rows), refusal="OWNERSHIP_LOST"),))
