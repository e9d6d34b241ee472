"""What a session can be asked, blocking face: its log, runs, events, traces, waits. Nothing here changes the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from .chat import Message
from .effects import Flow
from .events import Event, EventPage
from .facts import Fact
from .host import operations as ops
from .host import parking
from .host.accounting import session_usage
from .host.drive import SyncMailbox, drive
from .host.plain_world import PlainWorld
from .host.streams import follow
from .runs import Run, SessionUsage, TraceEvent
from .session_base import SessionBase
from .waits import Wait

R = TypeVar("R")


class SessionViews(SessionBase):
    """Questions to a session. Each method is one line: what it does is a flow, driven here."""

    def _do(self, flow: Flow[R]) -> R:
        core = self._core
        core.check_open()
        return drive(core.within_scope(flow), core.agent.store, PlainWorld(core.env), SyncMailbox(), core.agent.workers)

    def history(self) -> list[Message]:
        """The conversation as a provider would be sent it next."""
        return self._do(ops.history(self._core))

    def facts(self, after_seq: int = 0) -> list[Fact]:
        """Facts of the live branch with a seq greater than ``after_seq``, in order (§4)."""
        return self._do(ops.list_facts(self._core, after_seq))

    def runs(self) -> list[Run]:
        """Runs that are kept, oldest first."""
        return self._do(ops.list_runs(self._core))

    def run_snapshot(self, run_id: str) -> Run | None:
        """One run of this session, or None."""
        return self._do(ops.run_snapshot(self._core, run_id))

    def current_run(self) -> Run | None:
        """The run that is live now, in whatever process, or None."""
        return self._do(ops.current_run(self._core))

    def run_events(self, run_id: str) -> list[Event]:
        """A run's events that are kept, oldest first; none for an unknown run."""
        return self._do(ops.all_events(self._core, run_id, None))

    def run_event_page(self, run_id: str, after_sequence: int | None = None, limit: int = 256) -> EventPage | None:
        """A page of a run's events after a cursor, in one snapshot; None for an unknown run (§10)."""
        return self._do(ops.event_page(self._core, run_id, after_sequence, limit))

    def events(self, after_sequence: int | None = None) -> list[Event]:
        """Events of the session's own channel (§10)."""
        return self._do(ops.all_events(self._core, None, after_sequence))

    def tail(self, run_id: str, after_sequence: int | None = None) -> Iterator[Event]:
        """Follow a run from whatever process until it is over; evicted events are told as ``retention_gap``."""
        self._core.check_open()
        tail = self._tail(run_id, after_sequence)
        return follow(tail, self._do)

    def trace_events(self) -> list[TraceEvent]:
        """Traces that are kept, oldest first."""
        return self._do(ops.list_traces(self._core))

    def usage(self) -> SessionUsage:
        """What the session's model requests took, by its facts; and of how many nobody knows (§6)."""
        return self._do(session_usage(self._core.agent.scope, self._core.session_id))

    def waits(self, run_id: str | None = None) -> list[Wait]:
        """What runs of this session wait for, or have been answered and not acted on yet; oldest first (§10)."""
        return self._do(parking.list_waits(self._core, run_id))
