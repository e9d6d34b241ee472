"""What a session can be asked beside running a turn: reads, the inbox, cancel and interrupt. Flows for both faces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from .. import inbox, reads, sessions, watching
from ..canonical import Json, check_text, dumps, loads
from ..chat import Message
from ..effects import Commit, Flow, Now, Read, Stopped
from ..events import Event, EventPage, NewEvent, check_cluster
from ..facts import Fact
from ..identity import MAX_EVENT_TYPE_BYTES, check_id, check_tags
from ..limits import parse_retention
from ..log import Log
from ..pages import PAGE
from ..plan import Plan
from ..runs import Run, SessionInfo, TraceEvent
from ..writes import BEGINNING, Head
from .core import AgentCore, SessionCore
from .loading import catch_up
from .parking import cancel_parked

MAX_PAGE = 10_000


def list_sessions(agent: AgentCore, filters: Mapping[str, str | None]) -> Flow[list[SessionInfo]]:
    """Sessions that the agent sees, oldest first. A tag in ``filters`` must be equal; None is: untagged only."""
    asked = check_tags(filters)
    if agent.scope.conflict(asked) is not None:
        return []
    wanted = agent.scope.narrowed(asked).tags
    found: list[SessionInfo] = []
    after = 0
    while True:
        page = yield from Read(reads.sessions(dict(wanted), after))
        for row in page:
            busy = row.owner is not None and agent.owner_alive(row.owner, row.session_id)
            found.append(
                SessionInfo(
                    session_id=row.session_id,
                    workspace=row.workspace,
                    tenant_id=row.tags.tenant_id,
                    principal=row.tags.principal,
                    agent_template_id=row.tags.agent_template_id,
                    correlation_id=row.tags.correlation_id,
                    created_ms=row.created_ms,
                    runs_ever=row.run_count,
                    busy=busy,
                )
            )
        if len(page) < PAGE:
            return found
        after = page[-1].session_pk


def _seen(agent: AgentCore, run: Run) -> Flow[Run]:
    """The run with its state. A run may end, and its owner leave, between two looks: only a second look that finds it
    unended says that it was interrupted."""
    seen = _state_of(agent, run)
    if seen.state != "interrupted":
        return seen
    again = yield from Read(reads.run(run.id))
    return seen if again is None else _state_of(agent, again)


def _state_of(agent: AgentCore, run: Run) -> Run:
    if run.owner is None or run.is_terminal:
        return run.seen_by({})
    return run.seen_by({run.owner: agent.owner_alive(run.owner, run.session_id)})


def list_runs(core: SessionCore) -> Flow[list[Run]]:
    """Runs that are kept, oldest first, with their derived state."""
    found = yield from Read(reads.runs(core.session_pk))
    seen: list[Run] = []
    for run in found:
        seen.append((yield from _seen(core.agent, run)))
    return seen


def run_snapshot(core: SessionCore, run_id: str) -> Flow[Run | None]:
    """One run of this session, or None."""
    run = yield from Read(reads.run(check_id(run_id, "run_id")))
    return None if run is None or run.session_id != core.session_id else (yield from _seen(core.agent, run))


def current_run(core: SessionCore) -> Flow[Run | None]:
    """The run that is live now, in whatever process, or None."""
    last = yield from Read(reads.last_run(core.session_pk))
    if last is None:
        return None
    run = yield from run_snapshot(core, last.run_id)
    return run if run is not None and run.state == run.status and not run.is_terminal else None


def stream_of(core: SessionCore, run_id: str | None) -> Flow[int | None]:
    """Number of a run's stream, or of the session's own channel; None for a run of no or another session."""
    if run_id is None:
        return -core.session_pk
    identity = yield from Read(reads.run_identity(check_id(run_id, "run_id")))
    return None if identity is None or identity.session_id != core.session_id else identity.run_pk


def event_page(core: SessionCore, run_id: str | None, after_sequence: int | None, limit: int) -> Flow[EventPage | None]:
    """A page of a run's events, or of the session's own channel; None for a run that is not kept."""
    if isinstance(limit, bool) or not isinstance(limit, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("'limit' must be an integer")
    if not 0 <= limit <= MAX_PAGE:
        raise ValueError(f"'limit' must be between 0 and {MAX_PAGE}")
    check_cursor(after_sequence)
    stream = yield from stream_of(core, run_id)
    if stream is None:
        return None
    metadata: dict[str, Any] = {"run_id": run_id, "session_id": core.session_id, **core.tags.given()}
    return (yield from Read(watching.event_page(stream, after_sequence, limit, metadata)))


def check_cursor(after_sequence: object) -> None:
    """Raises TypeError or ValueError for what is no sequence to go on after, and not None."""
    if after_sequence is None:
        return
    if isinstance(after_sequence, bool) or not isinstance(after_sequence, int):
        raise TypeError(f"'after_sequence' must be an integer or None, not {type(after_sequence).__name__}")
    if not 0 <= after_sequence < 2**32:
        raise ValueError("'after_sequence' must be a sequence, or None to start at the oldest event")


def all_events(core: SessionCore, run_id: str | None, after_sequence: int | None) -> Flow[list[Event]]:
    """Every kept event after a cursor; none for an unknown run."""
    found: list[Event] = []
    while True:
        page = yield from event_page(core, run_id, after_sequence, PAGE)
        if page is None:
            return found
        found.extend(page.events)
        if not page.has_more:
            return found
        after_sequence = page.next_after_sequence


def list_facts(core: SessionCore, after_seq: int) -> Flow[list[Fact]]:
    """Facts of the live branch after a seq, in order."""
    if isinstance(after_seq, bool) or not isinstance(after_seq, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("'after_seq' must be an integer")
    if not 0 <= after_seq < 2**63:
        raise ValueError("'after_seq' must be a seq, or 0 to start at the first fact")
    row = yield from Read(reads.session(core.session_id))
    found: list[Fact] = []
    # The hash of the fact before the first is not known: only from there on is the chain checked.
    after = Head(after_seq, b"") if after_seq else BEGINNING
    while row is not None:
        page = yield from Read(reads.facts(row.live_branch, after, session_pk=core.session_pk))
        found.extend(one.fact for one in page)
        if len(page) < PAGE:
            break
        after = Head(page[-1].fact.seq, page[-1].hash)
    return found


def history(core: SessionCore) -> Flow[list[Message]]:
    """The conversation as a provider would be sent it next."""
    row = yield from Read(reads.session(core.session_id))
    if row is None:
        return []
    log = Log(row.live_branch, core.session_pk)
    yield from catch_up(log)
    return list(log.transcript.snapshot())


def list_traces(core: SessionCore) -> Flow[list[TraceEvent]]:
    """Traces that are kept, oldest first."""
    return (yield from Read(watching.traces(core.session_pk)))


def emit(core: SessionCore, event: NewEvent) -> Flow[None]:
    """Put a host's event on the stream of the live run, or on the session's own channel when none is live."""
    live = yield from current_run(core)
    stream = yield from stream_of(core, live.id if live else None)
    now = yield from Now()
    if stream is not None:
        yield from Commit(inbox.tell_owner(stream, "event", event.payload, now_ms=now, type=event.type))
        operation = core.agent.live.get(core.session_id)
        if operation is not None:
            operation.look_again()


def stop(core: SessionCore, stopped: Stopped, run_id: str | None, request_id: str | None = None) -> Flow[bool]:
    """Ask the live run to stop: here at once, elsewhere through its inbox. False when none is live."""
    if run_id is not None:
        check_id(run_id, "run_id")
    if not isinstance(stopped.reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"'reason' must be a string, not {type(stopped.reason).__name__}")
    check_text(stopped.reason, "reason")
    live = yield from current_run(core)
    if live is None or (run_id is not None and live.id != run_id):
        return False
    if live.status == "parked":
        if stopped.kind != "cancel":
            return False  # there is nothing to interrupt: the run can go on as it is
        ended = yield from cancel_parked(core, live.id, stopped.reason)
        if ended is not None:
            return ended
    operation = core.agent.live.get(core.session_id)
    if operation is not None and live.owner in (None, core.agent.store.owner):
        operation.request_stop(stopped)
        return True
    stream = yield from stream_of(core, live.id)
    now = yield from Now()
    if stream is not None:
        payload = {"reason": stopped.reason}
        yield from Commit(inbox.tell_owner(stream, stopped.kind, payload, now_ms=now, request_id=request_id))
    return True


def set_retention(core: SessionCore, given: Mapping[str, object]) -> Flow[None]:
    """New caps; a missing key keeps what the session has. They hold from the next insert on."""
    row = yield from Read(reads.session(core.session_id))
    if row is not None:
        caps = parse_retention(given, row.retention)
        yield from Commit(Plan((sessions.set_caps(core.session_pk, caps),), durable=True))


def check_event(event: object) -> NewEvent:
    """The event that a host wants to emit: an :class:`Event`, or a mapping with ``type`` and ``payload``.

    Raises:
        TypeError: something else.
        ValueError: a type that is blank or has more than 200 bytes, a payload that is not a JSON object, or a cluster
            event without one of its fields.
    """
    if isinstance(event, Event | NewEvent):
        kind, payload = event.type, event.payload
    elif isinstance(event, Mapping):
        given: Mapping[str, Any] = event  # pyright: ignore[reportUnknownVariableType]
        kind, payload = given.get("type", ""), given.get("payload", {})
    else:
        raise TypeError(f"an event must be an Event or a mapping, not {type(event).__name__}")
    check_id(kind, "type", MAX_EVENT_TYPE_BYTES)
    if not isinstance(payload, Mapping):
        raise TypeError("'payload' must be a mapping")
    value = dict(cast("Mapping[str, Json]", payload))
    check_cluster(kind, value)
    return NewEvent(kind, loads(dumps(value)))
