"""A session, blocking face. Every method is one line: what it does is a flow, driven here; `async_session` awaits the
same flows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from .canonical import Json
from .compaction import Compaction
from .effects import Flow, Stopped
from .events import Event
from .host import operations as ops
from .host import parking, passivating, recovering, short, steering, waiving
from .host.admitting import Assignment
from .host.core import STOP_WAIT_S
from .host.finishing import finish
from .host.guard import check_not_inside
from .host.leaving import end_session
from .host.running import LEAVING, SyncRunning
from .host.spawned import SpawnedRun
from .host.streams import RunStream
from .results import SendResult, compaction_of, result_of
from .session_base import nothing
from .session_options import OnInterrupted
from .session_views import SessionViews

R = TypeVar("R")


class Session(SessionViews):
    """One long-lived conversation, blocking face. Made by :meth:`thence.Agent.session`; not built directly."""

    def _finish(self, flow: Flow[R]) -> R:
        """For what claims the session: Ctrl-C waits until that is done."""
        self._core.check_open()
        return finish(self._core, self._core.within_scope(flow))

    def send(
        self,
        prompt: str,
        *,
        run_id: str | None = None,
        output_type: Any = None,
        on_interrupted: OnInterrupted | None = None,
    ) -> SendResult:
        """Run one turn to its end, or until the world must answer first: then ``status`` is ``parked`` (§1, §5, §10).

        Args:
            prompt: what the user says; not blank, at most 16 MiB of UTF-8.
            run_id: an id of the caller's own. The same id and input again give that run's outcome; nothing is started.
            output_type: what the answer is to be: a pydantic model, a dataclass, ``list[int]``, ... The model is given
                its JSON Schema, and ``output`` of the result is the value. ``str`` is the text as it is.
            on_interrupted: when the last run was interrupted: ``raise``, ``resume`` it first, or ``settle`` it and go
                on. Default: the session's option.

        Raises:
            ValueError, TypeError: an argument, before anything is written.
            OutputInvalid: the run has completed, and its answer is no value of ``output_type``.
            SessionBusy: another operation is active on the session, in whatever process.
            SessionClosed: after close.
            RunInterrupted: the last run was interrupted, or this one was.
            RunIdentityConflict: ``run_id`` is bound to another input or session.
            BudgetExhausted, RunFailed: the run failed; ``resumable`` says whether its turn is still open.
            StoreError: the file could not be written; nothing that was not acknowledged is claimed to be there.
        """
        running = SyncRunning(self._core, self._turn(prompt, run_id, output_type, on_interrupted))
        running.start(nothing)
        return result_of(running.join(), running.assignment.output)

    def stream(
        self,
        prompt: str,
        *,
        run_id: str | None = None,
        output_type: Any = None,
        on_interrupted: OnInterrupted | None = None,
    ) -> RunStream:
        """Start one turn and iterate over its events as they happen; arguments and errors as :meth:`send`.

        A broken provider stream is tried at most once more. Leaving the iteration early interrupts the run. Only the
        stream's ``result`` has the ``output``, and raises OutputInvalid.
        """
        running = SyncRunning(self._core, self._turn(prompt, run_id, output_type, on_interrupted), streaming=True)
        return RunStream(running, self._do)

    def resume_run(self, id: str, *, run_id: str | None = None, output_type: Any = None) -> SendResult:
        """Go on with an interrupted or failed run, as a new run from its newest durable fact; a parked run goes on as
        itself once its waits are answered (§7).

        A run that was resumed before: its newest descendant goes on. A turn that has ended gives its recorded outcome
        (``replayed``); nothing is called.

        Args:
            id: the run to resume; an id the file does not know means the session's last turn.
            run_id: an id of the caller's own for the new run; the same again gives that run's outcome.
            output_type: as in :meth:`send`; the file has the schema, not the type. Without it the model is asked for
                the same as before, and ``output`` is None.

        Raises:
            SessionError: ``no loop checkpoint found for run '<id>'``: there is nothing to resume.
            SessionBusy: another operation is active, or somebody else resumed the run first.
            RunFailed: the turn had failed; its recorded error again.
        """
        running = SyncRunning(self._core, self._recovery(id, run_id, output_type))
        running.start(nothing)
        return result_of(running.join(), running.assignment.output)

    def spawn_run_with_id(self, run_id: str, prompt: str, *, output_type: Any = None) -> SpawnedRun:
        """Start a turn under the caller's id and return once the run is in the file, to stay (§7).

        The same id and input again: the run that is there, whatever its state; nothing is started.

        Raises:
            RunIdentityConflict: the id is bound to another input or session.
        """
        return self._spawn(self._turn(prompt, run_id, output_type, "raise"))

    def spawn_recovery_with_run_id(self, checkpoint_run_id: str, run_id: str, *, output_type: Any = None) -> SpawnedRun:
        """Start :meth:`resume_run` under the caller's id and return once the new run is in the file (§7)."""
        return self._spawn(self._recovery(checkpoint_run_id, run_id, output_type))

    def _spawn(self, assignment: Assignment) -> SpawnedRun:
        core = self._core
        known = self._do(recovering.known_run(core, assignment))
        if known is not None:
            return SpawnedRun(known, True, lambda: self._wait_for(assignment))
        running, output = SyncRunning(core, assignment), assignment.output
        running.start_and_begin()
        run = self._do(recovering.must_run(core, assignment))
        return SpawnedRun(run, running.was_replayed, lambda: result_of(running.join(leaving=False), output))

    def _wait_for(self, assignment: Assignment) -> SendResult:
        return result_of(self._do(recovering.await_run(self._core, assignment)), assignment.output)

    def compact(self) -> Compaction:
        """Have the model summarise the older part of the conversation, which goes on with that in its place (§5).

        The last message of the host and a tail of whole call groups stay as they are; the log keeps every fact. The
        request for the summary goes through the budget guard and the retries as any other. It is no run: its event is
        on the session's own channel.

        Returns:
            How many messages there were and are. Nothing to compact: the same number twice, and nothing was written.

        Raises:
            SessionBusy: another operation is active on the session, or its run is parked.
            RunInterrupted: the last run was interrupted: resume it first.
            SessionError: the last run failed and its turn is still open, or somebody interrupted this.
            BudgetExhausted, ModelError: there is no summary; nothing was changed.
        """
        running = SyncRunning(self._core, Assignment(compact=True))
        running.start(nothing)
        return compaction_of(running.join())

    def waive(self, digest: str, reason: str) -> None:
        """Let the open turn end although nobody has verified its workspace changes (§5); then resume its run.

        Args:
            digest: names the changes, as :class:`~thence.GateClosed` says; changes that come later are not waived.
            reason: why; kept in the log, not blank.

        Raises:
            ValueError, TypeError: a blank digest or reason, before anything is written.
            SessionError: no turn waits at the completion gate, or its changes are others.
            SessionBusy: another operation is active on the session, in whatever process.
        """
        self._finish(waiving.tell_gate(self._core, waiving.check_waiver(digest, reason)))

    def report_verification(self, digest: str, passed: bool, report: Json = None) -> None:
        """Record a verification that the host made itself (§5); then resume the run. The newest report of a digest
        counts.

        Args:
            digest: names the changes that were verified.
            passed: whether they are good.
            report: any JSON value, at most 16 MiB.

        Raises:
            ValueError, TypeError: a refused argument, before anything is written.
            SessionError, SessionBusy: as :meth:`waive`.
        """
        self._finish(waiving.tell_gate(self._core, waiving.check_report(digest, passed, report)))

    def takeover(self, force: bool = False) -> None:
        """Take the session from a dead owner, or with ``force`` from a living one: its writes are refused from now on.

        Raises:
            SessionBusy: the owner lives, and ``force`` is not set.
        """
        self._finish(short.take_over(self._core, force=force))

    def emit(self, event: Event | Mapping[str, Any]) -> None:
        """Put a host's event on the live run's stream, or on the session's channel when none is live (§10).

        ``passivation_requested`` and ``peer_invocation`` are for whoever reads; thence does not act on them (see
        :meth:`passivate`).

        Raises:
            ValueError, TypeError: no type, or one of more than 200 bytes; no JSON object as payload; or a cluster event
                without one of its fields.
        """
        self._do(ops.emit(self._core, ops.check_event(event)))

    def answer(self, wait_id: str, value: Any, *, digest: str | None = None, by: str | None = None) -> None:
        """Answer a wait, from whatever process; ``resume_run`` or ``agent.recover`` then goes on with its run (§10).

        Args:
            wait_id: as in :attr:`thence.Wait.id`.
            value: a confirmation and a budget hold take True, False or ``{"approved": bool, "reason": text}``; an
                unknown outcome takes ``{"outcome": "run"}``, ``{"outcome": "done", "result": json}`` or ``{"outcome":
                "failed", "error": text}``; a question and a deferred result take any JSON: it is the call's result.
            digest: refuse the answer unless the wait is about this; default: whatever it is about.
            by: who answers, for the log.

        Raises:
            TypeError, ValueError: a value that does not fit the wait; nothing was written.
            WaitError: ``.code`` is ``WAIT_NOT_FOUND``, ``WAIT_ALREADY_ANSWERED``, ``WAIT_CLOSED``,
                ``WAIT_DIGEST_MISMATCH`` or ``WAIT_EXPIRED``.
        """
        self._do(parking.answer(self._core, wait_id, value, digest, by))

    def confirm(self, call_key: str, approved: bool, reason: str | None = None, *, by: str | None = None) -> None:
        """Answer the confirmation, or the budget hold, that is open for a call; errors as :meth:`answer`."""
        self._do(parking.confirm(self._core, call_key, approved, reason, by))

    def cancel(self) -> bool:
        """Cancel the live or parked run, for ever; False when there is none."""
        return self._finish(ops.stop(self._core, Stopped("cancel", "cancelled by the host", 1000), None))

    def cancel_run(self, run_id: str) -> bool:
        """Cancel the live or parked run if it is this one."""
        return self._finish(ops.stop(self._core, Stopped("cancel", "cancelled by the host", 1000), run_id))

    def steer(self, text: str, request_id: str | None = None) -> bool:
        """Say something to the live run, of whatever process: a ``user.message`` at its next safe point (§1, §8).

        That is before the next model request, never between a call and its result; a turn that has its answer asks the
        model again instead of ending. Messages come in the order in which they were said, however many wait. One that
        the run's turn does not come to read, because it is interrupted, is read when the turn is resumed.

        Args:
            text: what to say; not blank, at most 16 MiB of UTF-8.
            request_id: at most 1,000 bytes; makes it safe to say it again: a request that the session knows is ignored.
                A request is known as long as its run is kept, or a message that was not compacted away carries it.

        Returns:
            True: a live run was told, now or before under this request. It reads the message unless it fails or is
            cancelled first. False: none is live, and nothing was kept.

        Raises:
            ValueError, TypeError: the text or the request id, before anything is written.
            SessionClosed: after close.
        """
        return self._do(steering.steer(self._core, text, request_id))

    def interrupt(self, reason: str = "") -> bool:
        """Interrupt the live run, of whatever process, at its next safe point; it can be resumed (§1).

        ``reason`` is for people: the run's ``run_control_applied`` event keeps it, and the
        :class:`~thence.RunInterrupted` that its caller gets says it. False when none is live.
        """
        return self._do(ops.stop(self._core, Stopped("interrupt", reason), None))

    def passivate(self, deadline_ms: int | None = None) -> bool:
        """Let the session go, so that it can go on in another process: interrupt what is live, in whatever process, at
        its next safe point, keep what still lands, and release (§8). The session stays open here.

        Args:
            deadline_ms: until when running tools may land, in Unix epoch milliseconds; one that has passed forces the
                release at once, and tools that hang are left behind. Default: 5 seconds from now.

        Returns:
            Whether nobody has the session now. False: its owner, alive, has not answered by then; only
            :meth:`takeover` with ``force`` displaces it.
        """
        return self._do(passivating.passivate(self._core, deadline_ms))

    def set_retention(self, limits: Mapping[str, object]) -> None:
        """New caps (§9); a missing key keeps what the session has."""
        self._do(ops.set_retention(self._core, limits))

    def close(self) -> None:
        """Interrupt what is live, wait until it has let go (at most 6 s), and refuse further use. Idempotent."""
        core = self._core
        check_not_inside(core.session_id)
        operation = core.agent.live.get(core.session_id)
        core.closed = True
        if operation is not None:
            operation.request_stop(LEAVING)
            operation.wait(STOP_WAIT_S)
        end_session(core)
        core.let_guard_go()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
