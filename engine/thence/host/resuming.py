"""Going on with a run that another process, or another day, left behind (§7). Flows, driven by either face.

Facts decide, never the checkpoint: an open turn goes on as a new run on a new branch, from the newest durable fact; a
closed one gives back what it recorded, and nothing is called.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .. import inflight, reads, waits, writes
from ..effects import Commit, Flow, Now, Read
from ..endings import Outcome
from ..errors import (
    BudgetExhausted,
    ContextOverflow,
    GateClosed,
    RunFailed,
    RunIdentityConflict,
    RunInterrupted,
    SessionBusy,
    SessionError,
    ThenceError,
)
from ..facts import Ended
from ..fold import advance
from ..log import Log
from ..pages import PAGE
from ..plan import Op, Plan, PlanRefused, Rows
from ..reads import LastRun, RunIdentity
from ..report import start_of_run
from ..runs import TERMINAL, Run
from ..state import Phase, State
from ..turn import Turn
from ..writes import BEGINNING, SCHEMA_VERSION, Head, RunIds
from .admitting import Order, as_asked, operate, resume_prompt
from .drive import Take
from .env import distinct
from .parking import parked_outcome, wake
from .scoping import seen
from .world import RunWorld

LOOK_S = 0.05


def resume_flow(order: Order, world: RunWorld, run_id: str) -> Flow[Outcome]:
    """Resume ``run_id``, or the newest run that goes on from it.

    Raises:
        SessionError: the run is of another session, its checkpoint of a later version, or there is nothing to resume.
        SessionBusy: somebody else has the session, or resumed the run first.
        RunFailed: the run's turn had failed; its recorded error again.
    """
    order = replace(order, prompt=resume_prompt(run_id))
    if order.run_id is not None and order.run_id != run_id:
        known = yield from replay_of(order, order.input_sha256)
        if known is not None:
            return known

    def body(ids: RunIds, log: Log) -> Flow[Outcome]:
        last = yield from Read(reads.last_run(ids.session_pk))
        target = yield from _target(order, run_id)
        if log.state.phase is not Phase.IDLE and last is not None and target in (None, last.run_pk):
            if last.status == "parked":
                return (yield from wake(order, world, ids, log, last))
            yield from _check_checkpoint(last)
            return (yield from _go_on(order, world, ids, log, last))
        yield from Commit(Plan((writes.release(ids),)))
        if target is None and log.head.seq == 0:
            raise SessionError(_nothing_to_resume(order, run_id))
        name = run_id if target is not None else (last.run_id if last else run_id)
        return (yield from recorded_outcome(ids.session_id, ids.branch_pk, name))

    return (yield from once(order, operate(order, world, body)))


def once(order: Order, flow: Flow[Outcome]) -> Flow[Outcome]:
    """``flow``, or the outcome of whoever took the order's run id while it was on its way."""
    try:
        return (yield from flow)
    except PlanRefused as refused:
        if refused.code != "RUN_EXISTS":
            raise
        known = None if order.run_id is None else (yield from replay_of(order, order.input_sha256))
        if known is None:
            winner = yield from Read(reads.session(order.session_id))
            raise SessionBusy(order.session_id, holder=winner.owner if winner else None) from None
        return known


def _nothing_to_resume(order: Order, run_id: str) -> str:
    if order.in_memory:
        return "resume_run requires a session_store on this session"
    return f"no loop checkpoint found for run '{run_id}'"


def _target(order: Order, run_id: str) -> Flow[int | None]:
    """Number of the newest run that goes on from ``run_id``; None for an id that the file does not know, and for the
    run of a session that the agent does not see."""
    newest: RunIdentity | None = yield from Read(reads.newest_run(run_id))
    if newest is None:
        return None
    if newest.session_id != order.session_id:
        if (yield from seen(order.scope, newest.session_id)) is None:
            return None
        raise SessionError(f"run '{run_id}' belongs to session '{newest.session_id}'")
    return newest.run_pk


def _check_checkpoint(last: LastRun) -> Flow[None]:
    version = yield from Read(reads.checkpoint_version(last.run_pk))
    if version is not None and version > SCHEMA_VERSION:
        raise SessionError(
            f"the checkpoint of run '{last.run_id}' has schema version {version} "
            f"but this version supports at most {SCHEMA_VERSION}"
        )


def _go_on(order: Order, world: RunWorld, ids: RunIds, log: Log, last: LastRun) -> Flow[Outcome]:
    """A new run on a new branch; the old run's row and facts stay as they are."""
    calls = yield from Read(inflight.calls_in_flight(ids.session_pk))
    ids, returned = yield from _begin(order, world, ids, log, last)
    branch_pk, run_pk = returned[0][0][0], returned[1][0][0]
    log.branch_pk = branch_pk
    ids = replace(ids, branch_pk=branch_pk, run_pk=run_pk)
    world.station.enter(ids, keep_numbering=True, goes_on_from=last.run_pk)
    if order.begun is not None:
        order.begun()
    turn = Turn(ids, log, (yield from as_asked(order, ids, log)), world)
    turn.rounds.adopt(calls)
    return (yield from turn.run())


def _begin(
    order: Order, world: RunWorld, ids: RunIds, log: Log, last: LastRun
) -> Flow[tuple[RunIds, tuple[Rows, ...]]]:
    drawn = distinct(order.new_run_id)
    while True:
        ids = replace(ids, run_id=order.run_id or next(drawn), run_pk=None)
        now = yield from Now()
        event = start_of_run(order.prompt)
        ops: tuple[Op, ...] = (
            *order.unrecorded(),
            *writes.fork_branch(ids.session_pk),
            *writes.begin_run(
                ids,
                first_seq=log.head.seq + 1,
                input_sha256=order.input_sha256,
                prompt=order.prompt,
                now_ms=now,
                resumed_from=last.run_pk,
            ),
            inflight.adopt_calls(ids),
            waits.adopt(ids),
            waits.expire(ids, now),
            writes.forget_checkpoint(ids),
            *writes.record_events(ids, (event,), now),
        )
        world.station.enter(ids)
        try:
            returned = yield from Commit(Plan(ops, durable=True), (event,), now)
        except PlanRefused as refused:
            # A replay's generator starts from 0 again, and gives ids that the file holds already (§11).
            if refused.code == "RUN_EXISTS" and order.run_id is None:
                continue
            raise
        return ids, returned


def recorded_outcome(session_id: str, branch_pk: int, run_id: str) -> Flow[Outcome]:
    """What the turn of a run came to, from its facts. Nothing is called and no run is recorded.

    Raises:
        RunFailed: the turn failed, with its recorded code and text.
        SessionError: its facts are not on the live branch any more.
    """
    oldest = yield from Read(reads.oldest_run(run_id))
    state: State | None = None
    if oldest is not None and oldest.session_id != session_id:
        oldest = None
    after = BEGINNING if oldest is None else Head(oldest.first_seq - 1, b"")
    while True:
        page = yield from Read(reads.facts(branch_pk, after))
        for one in page:
            state = advance(state or _before(one.fact.key), one.new)
            if isinstance(one.new.payload, Ended):
                return _outcome_of(run_id, state, one.new.payload)
        if len(page) < PAGE:
            raise SessionError(f"the facts of run '{run_id}' hold no end of its turn")
        after = Head(page[-1].fact.seq, page[-1].hash)


def _before(key: str) -> State:
    """The state in which a turn begins, from the key of its first fact."""
    found = re.match(r"t(\d+)-", key)
    return State(turn=int(found.group(1)) - 1 if found else 0)


def _outcome_of(run_id: str, state: State, ended: Ended) -> Outcome:
    if ended.status == "failed":
        raise recorded_error(ended.code, ended.message or "the turn failed", run_id)
    return Outcome(ended.status, run_id, state.text, state.usage, state.tool_calls, replayed=True)


def recorded_error(code: str | None, message: str, run_id: str, *, resumable: bool = False) -> ThenceError:
    """The error that a run failed with, as far as its class can be told from what was recorded."""
    held = re.fullmatch(
        r"completion gate: workspace changes (\S+) have no passed verification and no waiver; (.*)", message, flags=re.S
    )
    if code == "COMPLETION_GATE" and held:
        return GateClosed(held.group(1), held.group(2), run_id=run_id, resumable=resumable)
    if code == ContextOverflow.code:
        return ContextOverflow(message, run_id=run_id, resumable=resumable)
    denied = re.fullmatch(r"Budget exhausted on '(.*?)': (.*)", message, flags=re.S)
    if code == BudgetExhausted.code and denied:
        error = BudgetExhausted(denied.group(1), denied.group(2), run_id=run_id)
        error.resumable = resumable
        return error
    return RunFailed(code or "RUN_FAILED", message, run_id=run_id, resumable=resumable)


def replay_of(order: Order, input_sha256: str) -> Flow[Outcome | None]:
    """The outcome of the run that has the order's id already, once it has ended or parked; None when the id is free
    (§7).

    Raises:
        RunIdentityConflict: the id is bound to other input or to another session.
        RunInterrupted: that run was interrupted.
    """
    run_id = order.run_id or ""
    identity = yield from Read(reads.run_identity(run_id))
    if identity is None:
        return None
    if identity.session_id != order.session_id or identity.input_sha256 != input_sha256:
        raise RunIdentityConflict(run_id)
    looked = False
    while True:
        run = yield from Read(reads.run(run_id))
        if run is None or run.status in TERMINAL or run.state == "superseded":
            break
        if run.status == "parked":
            return (yield from parked_outcome(identity.run_pk, run))
        living = run.owner is not None and order.owner_alive(run.owner)
        if order.stopping() or (not living and looked):
            raise RunInterrupted(run_id, ())
        # It may have ended, and its owner left, between the two looks: the next one tells.
        looked = not living
        if living:
            yield Take(LOOK_S)
    return (yield from _ended_outcome(order, run_id, run))


def _ended_outcome(order: Order, run_id: str, run: Run | None) -> Flow[Outcome]:
    if run is not None and run.status == "failed":
        raise recorded_error(run.error_code, run.error_message or "the run failed", run_id, resumable=run.resumable)
    if run is not None and run.status in TERMINAL:
        cancelled = run.status == "cancelled"
        return Outcome(
            "cancelled" if cancelled else "completed",
            run_id,
            run.result_text or "",
            run.usage,
            run.tool_calls_count,
            replayed=True,
        )
    row = yield from Read(reads.session(order.session_id))
    return (yield from recorded_outcome(order.session_id, row.live_branch if row else 0, run_id))
