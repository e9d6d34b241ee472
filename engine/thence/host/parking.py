"""Parked runs: going on with one, saying what it waits for, answering it from anywhere (§10). Flows for both faces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .. import inflight, reads, waits
from ..answers import YES_OR_NO, check_value
from ..effects import Commit, Flow, Now, Read
from ..endings import Outcome
from ..errors import SessionBusy, SessionError, WaitError
from ..identity import check_id
from ..ledger import Nobody
from ..log import Log
from ..plan import Plan, PlanRefused
from ..reads import LastRun
from ..report import control_applied
from ..runs import Run
from ..turn import Turn
from ..waits import Wait
from ..writes import RunIds
from .admitting import Order, as_asked, give_back
from .core import AgentCore, SessionCore
from .hooks import Hooks
from .scoping import all_seen
from .short import shortly
from .world import RunWorld

REFUSALS = {
    "WAIT_NOT_FOUND": "is not there any more",
    "WAIT_ALREADY_ANSWERED": "was answered already",
    "WAIT_CLOSED": "is closed: nobody waits for it any more",
    "WAIT_DIGEST_MISMATCH": "is about something else than the answer",
    "WAIT_EXPIRED": "could be answered until its deadline, which has passed",
}


def wake(order: Order, world: RunWorld, ids: RunIds, log: Log, last: LastRun) -> Flow[Outcome]:
    """The same run goes on, once everything it waits for is answered or past its deadline.

    Raises:
        SessionBusy: naming the waits that are still open. Nothing was changed.
        SessionError: the caller gave an id for a new run.
    """
    now = yield from Now()
    found = yield from Read(waits.waits(ids.session_pk))
    if any(wait.state == "open" and not _overdue(wait, now) for wait in found):
        raise (yield from parked_busy(order, last.run_id))
    if order.run_id is not None and order.run_id != last.run_id:
        raise SessionError(f"run '{last.run_id}' is parked: it goes on under its own id, not as '{order.run_id}'")
    ids = replace(ids, run_id=last.run_id, run_pk=last.run_pk)
    parked = yield from Read(waits.parked_run(last.run_pk))
    yield from Commit(Plan((*order.unrecorded(), waits.expire(ids, now), waits.wake(ids, now)), durable=True))
    world.station.enter(ids)
    world.station.next_sequence = parked.next_event
    if order.begun is not None:
        order.begun()
    turn = Turn(ids, log, (yield from as_asked(order, ids, log)), world)
    turn.ledger.failed_requests = parked.without_usage - log.state.without_usage
    turn.rounds.adopt((yield from Read(inflight.calls_in_flight(ids.session_pk))))
    return (yield from turn.run())


def _overdue(wait: Wait, now_ms: int) -> bool:
    return wait.deadline_ms is not None and wait.deadline_ms < now_ms


def parked_busy(order: Order, run_id: str) -> Flow[SessionBusy]:
    """What a second operation is told while a run is parked."""
    row = yield from Read(reads.session(order.session_id))
    found = yield from Read(waits.waits(row.session_pk if row else 0))
    open_ids = tuple(wait.id for wait in found if wait.state == "open")
    return SessionBusy(order.session_id, run_id=run_id, waits=open_ids)


def parked_outcome(run_pk: int, run: Run) -> Flow[Outcome]:
    """How a parked run stands, told as its outcome so far."""
    found = yield from Read(waits.waits(run_id=run.id))
    parked = yield from Read(waits.parked_run(run_pk))
    return Outcome("parked", run.id, "", parked.usage, parked.tool_calls, replayed=True, waits=tuple(found))


def list_waits(core: SessionCore, run_id: str | None) -> Flow[list[Wait]]:
    """Waits of a session that are not closed, oldest first."""
    if run_id is not None:
        check_id(run_id, "run_id")
    return (yield from Read(waits.waits(core.session_pk, run_id=run_id)))


def all_waits(agent: AgentCore) -> Flow[list[Wait]]:
    """Waits that are not closed, of all sessions that the agent sees, oldest first."""
    found = yield from Read(waits.waits())
    there = yield from all_seen(agent.scope, (wait.session_id for wait in found))
    return [wait for wait in found if wait.session_id in there]


def answer(core: SessionCore, wait_id: str, value: Any, digest: str | None, by: str | None) -> Flow[None]:
    """Somebody's answer, from whatever process: at most one a wait is taken.

    Raises:
        TypeError, ValueError: a value that does not fit the wait; nothing was written.
        WaitError: there is no such wait, it has its answer, nobody waits any more, or the answer is for something else.
    """
    check_id(wait_id, "wait_id")
    if by is not None:
        check_id(by, "by")
    if digest is not None and not isinstance(digest, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"'digest' must be a string or None, not {type(digest).__name__}")
    found = yield from Read(waits.wait(core.session_pk, wait_id))
    if found is None:
        raise WaitError("WAIT_NOT_FOUND", f"session '{core.session_id}' has no wait '{wait_id}'")
    stored = check_value(found.kind, value)
    now = yield from Now()
    try:
        yield from Commit(waits.answer(core.session_pk, wait_id, stored, digest=digest, by=by, now_ms=now))
    except PlanRefused as refused:
        if refused.code not in REFUSALS:
            raise
        text = f"wait '{wait_id}' of session '{core.session_id}' {REFUSALS[refused.code]}"
        raise WaitError(refused.code, text) from None
    operation = core.agent.live.get(core.session_id)
    if operation is not None:
        operation.look_again()


def confirm(core: SessionCore, call_key: str, approved: bool, reason: str | None, by: str | None) -> Flow[None]:
    """Answer the open confirmation, or budget hold, of a call.

    Raises:
        TypeError: ``approved`` is no bool.
        WaitError: nobody waits for this call.
    """
    check_id(call_key, "call_key")
    if not isinstance(approved, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"'approved' must be a bool, not {type(approved).__name__}")
    if reason is not None and not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"'reason' must be a string or None, not {type(reason).__name__}")
    found = yield from Read(waits.waits(core.session_pk))
    about = [wait for wait in found if wait.subject == call_key and wait.kind in YES_OR_NO]
    if not about:
        raise WaitError("WAIT_NOT_FOUND", f"session '{core.session_id}' has no confirmation open for '{call_key}'")
    value: dict[str, Any] = {"approved": approved}
    if reason is not None:
        value["reason"] = reason
    yield from answer(core, about[-1].id, value, None, by)


class _Hooked(Nobody):
    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def is_hooked(self, event_type: str) -> bool:
        return bool(self._hooks.of(event_type))


def cancel_parked(core: SessionCore, run_id: str, reason: str) -> Flow[bool | None]:
    """End a parked run for ever: its calls get results, its waits are closed.

    False when it is parked no more; None when somebody is about to go on with it: the order is for them.
    """

    def body(ids: RunIds, log: Log, last: LastRun | None) -> Flow[bool]:
        if last is None or last.run_id != run_id or last.status != "parked":
            yield from give_back(ids)
            return False
        ids = replace(ids, run_id=last.run_id, run_pk=last.run_pk)
        turn = Turn(ids, log, core.setup(streaming=False), _Hooked(core.hooks))
        turn.rounds.adopt((yield from Read(inflight.calls_in_flight(ids.session_pk))))
        turn.ledger.say(control_applied("cancel", log.state, reason=reason))
        yield from turn.rounds.settle_cancelled(reason)
        yield from turn.endings.end("cancelled", "CANCELLED", reason)
        return True

    try:
        return (yield from shortly(core, body))
    except SessionBusy:
        return None
