"""Following a run from any process: recorded events in order, no gap unreported, pieces as they come (§10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import reads, watching
from ..effects import Flow, Read
from ..errors import SessionError
from ..events import Event
from ..identity import check_id
from ..pages import PAGE
from ..runs import TERMINAL

FIRST_WAIT_S = 0.005
LIVE_WAIT_S = 0.05
IDLE_WAIT_S = 1.0


@dataclass(slots=True)
class Tail:
    """Where a follower stands. ``done``: the run is over and all of it was returned."""

    session_id: str
    run_id: str
    tags: dict[str, str]
    owner_alive: Callable[[str], bool]
    after: int | None = None
    delta: int = 0
    stream_pk: int | None = None
    done: bool = False
    wait_s: float = FIRST_WAIT_S

    def read_on(self) -> Flow[list[Event]]:
        """What is new; sets :attr:`done`, and :attr:`wait_s` for the time until the next look."""
        stream = yield from self._stream()
        # The end is read before the events: what came between the two is then in the events.
        end = yield from Read(watching.stream_end(stream))
        metadata: dict[str, Any] = {"run_id": self.run_id, "session_id": self.session_id, **self.tags}
        pieces = yield from Read(watching.deltas(stream, self.delta))
        page = yield from Read(watching.event_page(stream, self.after, PAGE, metadata))
        found: list[Event] = []
        if page is not None:
            if page.retention_gap:
                found.append(self._gap(page.first_available_sequence, page.latest_sequence_exclusive, metadata))
            found.extend(page.events)
            if page.events:
                self.after = page.next_after_sequence
            elif page.retention_gap:
                self.after = page.latest_sequence_exclusive - 1
        where = {**metadata, "sequence": None, "timestamp_ms": None}
        void = _ended_steps(found)
        for number, step, event in pieces:
            self.delta = number
            if not step.endswith(void):
                found.append(Event(event.type, event.payload, where))
        if end is not None and end[0] == "parked":
            self.delta = 0  # no piece outlives the parking, and whoever goes on numbers them anew
        over = end is None or end[0] in TERMINAL or end[1]
        self.done = over and (page is None or not page.has_more)
        owner = None if end is None else end[2]
        cap = LIVE_WAIT_S if owner is not None and self.owner_alive(owner) else IDLE_WAIT_S
        self.wait_s = FIRST_WAIT_S if found else min(self.wait_s * 2, cap)
        return found

    def _stream(self) -> Flow[int]:
        if self.stream_pk is None:
            identity = yield from Read(reads.run_identity(check_id(self.run_id, "run_id")))
            if identity is None or identity.session_id != self.session_id:
                raise SessionError(f"Run not found: {self.run_id}")
            self.stream_pk = identity.run_pk
        return self.stream_pk

    def _gap(self, first: int | None, latest: int, metadata: dict[str, Any]) -> Event:
        missed = 0 if self.after is None else self.after + 1
        payload = {"first_missing": missed, "next_available": latest if first is None else first}
        return Event("retention_gap", payload, {**metadata, "sequence": None, "timestamp_ms": None})


def _ended_steps(events: list[Event]) -> tuple[str, ...]:
    """Ends of the steps that these events close: pieces of them that were read before are void."""
    ends = [f"-r{event.payload.get('turn')}" for event in events if event.type == "turn_end"]
    return (*ends, *(str(event.payload.get("id")) for event in events if event.type == "tool_end"))
