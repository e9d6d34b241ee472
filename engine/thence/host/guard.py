"""The budget guard's seam: the host's object on daemon threads, each call under its time limit, fail closed (§6)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from .. import budget
from ..budget import GuardDecision
from ..chat import Usage
from ..effects import AskGuard, Flow
from ..errors import SessionError
from .drive import Start, Take
from .jobs import Finished, Job, Post, Spawn
from .stuck import StuckThreads

log = logging.getLogger("thence.guard")

STUCK = StuckThreads("guard")

_inside = threading.local()
"""On a guard's thread: the id of the session that it is asked about."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A session's guard and the time limit of each of its calls."""

    guard: object
    timeout_ms: int = 5000


@dataclass(slots=True)
class _Answer:
    value: object = None
    error: BaseException | None = None
    ended: float = 0.0


def check_not_inside(session_id: str) -> None:
    """Refuse a call of the session from within its own guard: it could only wait for itself.

    Raises:
        SessionError: this thread is inside the session's guard.
    """
    if getattr(_inside, "session_id", None) == session_id:
        raise SessionError(f"a budget guard must not call back into its own session '{session_id}'")


def stuck_threads() -> int:
    """How many guard threads are past their limit and still running, in this process."""
    return STUCK.count


def ask_guard(
    guarded: Guarded | None, effect: AskGuard, session_id: str, post: Post, stopped: Callable[[], bool]
) -> Flow[GuardDecision]:
    """Ask the guard on a worker thread and judge the answer by the clock read where it ended.

    When the run is to stop the answer does not matter any more: the safe point that follows every check stops it.
    """
    if guarded is None:
        return budget.ALLOW
    name, guard = effect.method, guarded.guard
    try:
        method = getattr(guard, name, None)
    except Exception as error:  # noqa: BLE001 - a guard that raises denies
        return _settle(name, budget.raised(name, error))
    if method is None:
        return budget.ALLOW
    reason = STUCK.no_room(guard)
    if reason is not None:
        return _settle(name, budget.unavailable(name, reason))
    argument = effect.argument
    value = argument.to_dict() if isinstance(argument, Usage) else argument
    job, answer = Job("guard", name), _Answer()
    deadline = time.monotonic() + guarded.timeout_ms / 1000

    def call() -> None:
        _inside.session_id = session_id
        try:
            answer.value = method(session_id, value)
        except BaseException as error:  # noqa: BLE001 - a guard that raises denies
            answer.error = error
        _inside.session_id = None
        answer.ended = time.monotonic()
        job.finished = True
        STUCK.leave(guard, job)
        post(Finished(job))

    yield Start(Spawn(job, plain=call))
    while not job.finished and not stopped() and (left := deadline - time.monotonic()) > 0:
        yield Take(left)
    if not job.finished:
        STUCK.enter(guard, job)
        if stopped():
            return budget.ALLOW
        return _settle(name, budget.late(name, guarded.timeout_ms))
    if answer.ended > deadline:
        return _settle(name, budget.late(name, guarded.timeout_ms))
    if answer.error is not None:
        return _settle(name, budget.raised(name, answer.error))
    if name == "record_after_llm":
        return budget.ALLOW
    return budget.read_decision(name, answer.value)


def _settle(name: str, decision: GuardDecision) -> GuardDecision:
    if name != "record_after_llm":
        return decision
    log.warning("record_after_llm was ignored: %s", decision.reason)
    return budget.ALLOW
