"""A session, blocking face. Every method is one line: what it does is a flow, driven here; `async_session` awaits the
same flows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from .chat import Message
from .effects import Flow, Stopped
from .errors import SessionConfiguration
from .events import Event, EventPage
from .facts import Fact
from .host import operations as ops
from .host.core import STOP_WAIT_S, PlainWorld, SessionCore, check_prompt
from .host.drive import SyncMailbox, drive
from .host.guard import Guarded
from .host.running import LEAVING, SyncRunning
from .host.streams import RunStream, follow
from .host.tailing import Tail
from .limits import check_limit
from .options import OnInterrupted, check_on_interrupted
from .results import SendResult, result_of
from .runs import Run, TraceEvent

R = TypeVar("R")


class SessionBase:
    """What needs no file: identity, the guard, and whether the session is closed."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core

    @property
    def session_id(self) -> str:
        """The session's id: unique in the file, for ever."""
        return self._core.session_id

    @property
    def workspace(self) -> str:
        """Absolute path of the folder that tools work in. It need not exist."""
        return str(self._core.workspace)

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called, here or on the agent."""
        return self._core.closed or self._core.agent.closed

    @property
    def tenant_id(self) -> str | None:
        """Opaque tag (§3)."""
        return self._core.tags.tenant_id

    @property
    def principal(self) -> str | None:
        """Opaque tag (§3)."""
        return self._core.tags.principal

    @property
    def agent_template_id(self) -> str | None:
        """Opaque tag (§3)."""
        return self._core.tags.agent_template_id

    @property
    def correlation_id(self) -> str | None:
        """Opaque tag (§3)."""
        return self._core.tags.correlation_id

    def set_budget_guard(self, guard: object | None, timeout_ms: int = 5000) -> None:
        """Install or, with None, clear the budget guard; from the next check on, also in a live run (§6).

        Args:
            guard: any object with some of ``check_before_llm``, ``record_after_llm``, ``check_before_tool``.
            timeout_ms: time limit of each of its calls, in milliseconds.

        Raises:
            SessionClosed: after close.
            SessionConfiguration: ``timeout_ms`` is not greater than zero.
        """
        self._core.check_open()
        if check_limit("budget_guard_timeout_ms", timeout_ms) is None:
            raise SessionConfiguration("budget_guard_timeout_ms", "must be greater than zero")
        self._core.guard = None if guard is None else Guarded(guard, timeout_ms)

    def _choice(self, given: OnInterrupted | None) -> OnInterrupted:
        return self._core.on_interrupted if given is None else check_on_interrupted(given)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id!r}{' closed' if self.is_closed else ''}>"


class Session(SessionBase):
    """One long-lived conversation, blocking face. Made by :meth:`thence.Agent.session`; not built directly."""

    def _do(self, flow: Flow[R]) -> R:
        core = self._core
        core.check_open()
        return drive(flow, core.agent.store, PlainWorld(core.env), SyncMailbox(), core.agent.workers)

    def send(self, prompt: str, *, on_interrupted: OnInterrupted | None = None) -> SendResult:
        """Run one turn to its end (§1, §5).

        Args:
            prompt: what the user says; not blank, at most 16 MiB of UTF-8.
            on_interrupted: when the last run was interrupted: ``raise``, or ``settle`` it and go on. Default: the
                session's option.

        Raises:
            ValueError, TypeError: the prompt, before anything is written.
            SessionBusy: another operation is active on the session, in whatever process.
            SessionClosed: after close.
            RunInterrupted: the last run was interrupted, or this one was.
            BudgetExhausted, RunFailed: the run failed; ``resumable`` says whether its turn is still open.
            StoreError: the file could not be written; nothing that was not acknowledged is claimed to be there.
        """
        running = SyncRunning(self._core, check_prompt(prompt), self._choice(on_interrupted), streaming=False)
        running.start(nothing)
        return result_of(running.join())

    def stream(self, prompt: str, *, on_interrupted: OnInterrupted | None = None) -> RunStream:
        """Start one turn and iterate over its events as they happen; arguments and errors as :meth:`send`.

        A broken provider stream is tried at most once more. Leaving the iteration early interrupts the run.
        """
        running = SyncRunning(self._core, check_prompt(prompt), self._choice(on_interrupted), streaming=True)
        return RunStream(running, self._do)

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
        tail = Tail(self.session_id, run_id, self._core.tags.given(), after_sequence)
        return follow(tail, self._do)

    def trace_events(self) -> list[TraceEvent]:
        """Traces that are kept, oldest first."""
        return self._do(ops.list_traces(self._core))

    def emit(self, event: Event | Mapping[str, Any]) -> None:
        """Put a host's event on the live run's stream, or on the session's channel when none is live (§10)."""
        self._do(ops.emit(self._core, ops.check_event(event)))

    def cancel(self) -> bool:
        """Cancel the live run, for ever; False when none is live."""
        return self._do(ops.stop(self._core, Stopped("cancel", "cancelled by the host", 1000), None))

    def cancel_run(self, run_id: str) -> bool:
        """Cancel the live run if it is this one."""
        return self._do(ops.stop(self._core, Stopped("cancel", "cancelled by the host", 1000), run_id))

    def interrupt(self, reason: str = "") -> bool:
        """Interrupt the live run at its next safe point; it can be resumed. False when none is live."""
        return self._do(ops.stop(self._core, Stopped("interrupt", reason), None))

    def set_retention(self, limits: Mapping[str, object]) -> None:
        """New caps (§9); a missing key keeps what the session has."""
        self._do(ops.set_retention(self._core, limits))

    def close(self) -> None:
        """Interrupt what is live, wait until it has let go (at most 6 s), and refuse further use. Idempotent."""
        core = self._core
        operation = core.agent.live.get(core.session_id)
        core.closed = True
        if operation is not None:
            operation.request_stop(LEAVING)
            operation.wait(STOP_WAIT_S)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def nothing() -> None:
    """Nobody streams."""
