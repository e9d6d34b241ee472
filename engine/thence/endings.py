"""Every way out of a run: its end, a failure that can be resumed, a stop, a parking (§5, §7, §10).

Each of them stages what is still to be said and writes it with the release of the session: whoever comes next finds a
history that is valid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from . import hooked, waits, writes
from .chat import Usage
from .compaction import Compaction
from .consent import stage_answers
from .effects import Commit, DrainTools, Flow, Now, Read, SafePoint, Stopped
from .errors import RunFailed, RunInterrupted, ThenceError
from .facts import Ended, EndStatus, turn_key
from .inbox import forget_steers
from .ledger import Ledger
from .plan import Plan, PlanRefused
from .report import control_applied, end_of_run
from .rounds import Rounds
from .state import Phase
from .steering import take_steers
from .waits import Wait

Status: TypeAlias = Literal["completed", "failed", "cancelled", "interrupted", "parked"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended in this process. ``error`` is what the caller is told of a failed or interrupted one;
    ``of_earlier``: it is the run before, which was resumed first, and the caller's own did not begin."""

    status: Status
    run_id: str
    text: str
    usage: Usage
    tool_calls_count: int
    error: ThenceError | None = None
    replayed: bool = False
    waits: tuple[Wait, ...] = ()
    compaction: Compaction | None = None
    of_earlier: bool = False


class Endings:
    """How one run lets go."""

    def __init__(self, ledger: Ledger, rounds: Rounds) -> None:
        self.ledger, self.rounds = ledger, rounds
        self.ids, self.log = ledger.ids, ledger.log
        self.heard: set[str] = set()
        """Waits whose answers came in this operation: a no that an earlier one heard does not bind this one."""

    def end(
        self, status: Literal["completed", "failed", "cancelled"], code: str | None, message: str | None
    ) -> Flow[Outcome]:
        """Close the turn with ``turn.ended``; the run is over."""
        key = f"{turn_key(self.log.state.turn)}-end"
        self.ledger.stage(key, f"end:{key}", Ended(status, code, message))
        if status != "completed":
            self.ledger.also(forget_steers(self.ids))
        error: ThenceError | None = None
        if status == "failed":
            error = RunFailed(code or "RUN_FAILED", message or "the turn failed", run_id=self.ids.run_id)
        return (yield from self._finish(status, error, resumable=False))

    def end_unless_steered(self, status: EndStatus, code: str | None, message: str | None) -> Flow[Outcome | None]:
        """Close the turn; None when SQLite refused it, because somebody had spoken to the run in the last moment."""
        mark = self.ledger.mark()
        try:
            return (yield from self.end(status, code, message))
        except PlanRefused as refused:
            if refused.code != "STEERED":
                raise
            self.ledger.go_back(mark)
            if not (yield from take_steers(self.ledger)):
                raise
            # It may have said that it was verifying what it did; now it goes on.
            self.ledger.also(writes.set_status(self.ids, "executing", (yield from Now())))
            return None

    def fail(self, error: ThenceError) -> Flow[Outcome]:
        """What fails outside the transcript ends the run without ``turn.ended``: it can be resumed at this step."""
        return (yield from self._finish("failed", error, resumable=True))

    def stop(self, stopped: Stopped) -> Flow[Outcome]:
        """Settle what is in flight and let go: for ever after a cancel, until a resume after an interrupt."""
        drained = yield from DrainTools(stopped.grace_ms)
        stopped = drained.stopped or stopped
        yield from self.rounds.land_all(drained.landed)
        if stopped.kind != "timeout":
            self.ledger.say(control_applied(stopped.kind, self.log.state, reason=stopped.reason))
        if stopped.kind == "interrupt":
            return (yield from self._interrupt(stopped.reason))
        if stopped.kind == "timeout":
            return (
                yield from self.fail(
                    RunFailed("EXECUTION_TIMEOUT", stopped.reason, run_id=self.ids.run_id, resumable=True)
                )
            )
        yield from self.rounds.settle_cancelled(stopped.reason)
        return (yield from self.end("cancelled", "CANCELLED", stopped.reason or None))

    def park(self) -> Flow[Outcome | None]:
        """Let go of the session until the world has answered. None: it has, meanwhile."""
        answered = yield from stage_answers(self.ledger)
        self.heard.update(answered)
        self.ledger.protect()
        yield from self.ledger.flush()
        stopped = yield from SafePoint(look=True)
        if stopped is not None:
            return (yield from self.stop(stopped))
        if answered:
            return None
        now = yield from Now()
        state = self.log.state
        checkpoint = writes.checkpoint(self.ids, self.log.head, state, now)
        calls = state.tool_calls + self.rounds.executed
        unknown = state.without_usage + self.ledger.failed_requests
        parking = waits.park(self.ids, state, tool_calls=calls, without_usage=unknown, now_ms=now)
        try:
            yield from Commit(Plan((parking, writes.clear_all_deltas(self.ids), checkpoint), durable=True))
        except PlanRefused as refused:
            # Somebody answered, or said stop, between our look and our write: the next look sees it.
            if refused.code != "ANSWERED":
                raise
            return None
        # The claim is kept until nobody has said stop in the meantime: a cancel that was promised must not be lost.
        stopped = yield from SafePoint()
        if stopped is not None:
            yield from Commit(Plan((waits.wake(self.ids, now),)))
            return (yield from self.stop(stopped))
        yield from Commit(Plan((writes.release(self.ids),)))
        found = yield from Read(waits.waits(self.ids.session_pk))
        return replace(self.outcome("parked", None), tool_calls_count=calls, waits=tuple(found))

    def _interrupt(self, reason: str) -> Flow[Outcome]:
        unknown = self.log.state.without_usage + self.ledger.failed_requests
        if unknown:
            self.ledger.also(writes.count_unknown(self.ids, at_least=unknown))
        self.ledger.also(writes.release(self.ids))
        self.ledger.protect()
        yield from self.ledger.flush()
        error = RunInterrupted(self.ids.run_id, tuple(call.key for call in self.log.state.open), reason)
        yield from hooked.after_run(self.ledger, "interrupted", "", error)
        return self.outcome("interrupted", error)

    def _finish(
        self, status: Literal["completed", "failed", "cancelled"], error: ThenceError | None, *, resumable: bool
    ) -> Flow[Outcome]:
        state = self.log.state
        now = yield from Now()
        self.ledger.say(end_of_run(status, state, error))
        self.ledger.also(
            writes.end_run(
                self.ids,
                state,
                status=status,
                now_ms=now,
                text=state.text if status == "completed" else None,
                error=(error.code, str(error)) if error else None,
                resumable=resumable,
                failed_requests=self.ledger.failed_requests,
            ),
            writes.release(self.ids),
        )
        self.ledger.protect()
        yield from self.ledger.flush()
        yield from hooked.after_run(self.ledger, status, state.text, error)
        return self.outcome(status, error)

    def outcome(self, status: Status, error: ThenceError | None) -> Outcome:
        state = self.log.state
        text = state.text if state.phase in (Phase.IDLE, Phase.ANSWERED) else ""
        return Outcome(status, self.ids.run_id, text, state.usage, state.tool_calls, error)
