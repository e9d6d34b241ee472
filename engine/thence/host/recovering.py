"""Runs by the caller's ids, and what a process finds interrupted (§7, §8). Flows for both faces."""

from __future__ import annotations

from .. import reads
from ..effects import Flow, Now, Read
from ..endings import Outcome
from ..errors import RunFailed, RunIdentityConflict
from ..reads import unfinished
from ..runs import Run
from ..waits import answered_runs
from .admitting import Assignment, make_order
from .core import AgentCore, SessionCore
from .operations import run_snapshot
from .resuming import recorded_outcome, replay_of
from .scoping import all_seen


def known_run(core: SessionCore, assignment: Assignment) -> Flow[Run | None]:
    """The run that has the assignment's id already, or None when the id is free.

    Raises:
        RunIdentityConflict: the id is bound to other input or another session.
    """
    run_id = assignment.run_id or ""
    if run_id == assignment.resume:
        return None  # a parked run that goes on as itself
    identity = yield from Read(reads.run_identity(run_id))
    if identity is None:
        return None
    if identity.session_id != core.session_id or identity.input_sha256 != assignment.input_sha256:
        raise RunIdentityConflict(run_id)
    return (yield from must_run(core, assignment))


def must_run(core: SessionCore, assignment: Assignment) -> Flow[Run]:
    """The run of the assignment's id; one that was evicted meanwhile is told as what is known of it."""
    run_id = assignment.run_id or ""
    if assignment.resume is not None and (yield from Read(reads.run_identity(run_id))) is None:
        run_id = assignment.resume  # its turn had ended: no new run was recorded
    run = yield from run_snapshot(core, run_id)
    if run is not None:
        return run
    row = yield from Read(reads.session(core.session_id))
    try:
        outcome = yield from recorded_outcome(core.session_id, row.live_branch if row else 0, run_id)
    except RunFailed as failed:
        return Run.evicted(run_id, core.session_id, assignment.prompt, "failed", str(failed))
    return Run.evicted(run_id, core.session_id, assignment.prompt, outcome.status, outcome.text)


def await_run(core: SessionCore, assignment: Assignment) -> Flow[Outcome]:
    """The outcome of the run that has the assignment's id, once it has ended."""
    outcome = yield from replay_of(make_order(core, assignment), assignment.input_sha256)
    if outcome is None:
        raise RunIdentityConflict(assignment.run_id or "")
    return outcome


def interrupted(agent: AgentCore) -> Flow[list[tuple[str, str]]]:
    """(session id, run id) of every run that can go on, of sessions that the agent sees: without an end and a living
    owner, or parked and answered."""
    found = yield from Read(unfinished())
    answered = yield from Read(answered_runs((yield from Now())))
    left = [
        (session_id, run_id)
        for session_id, run_id, owner in found
        if owner is None or not agent.owner_alive(owner, session_id)
    ]
    there = yield from all_seen(agent.scope, (session_id for session_id, _ in [*left, *answered]))
    return [one for one in [*left, *answered] if one[0] in there]
