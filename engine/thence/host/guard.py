"""The budget guard's seam: the host's object on daemon threads, each call under its time limit, fail closed (§6)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import budget
from ..budget import GuardDecision
from ..chat import Usage
from ..effects import AskGuard, Flow
from ..errors import SessionError
from .drive import Start
from .guard_pool import MAX_ALL, MAX_PER_GUARD, POOL
from .guard_process import ProcessGuard
from .jobs import Finished, Item, Job, Post, Spawn, Wake

log = logging.getLogger("thence.guard")

_inside = threading.local()
"""On a guard's thread: the id of the session that it is asked about."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A session's guard and the time limit of each of its calls."""

    guard: object
    timeout_ms: int = 5000


@dataclass(slots=True)
class _Answer:
    decision: GuardDecision = budget.ALLOW
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
    return POOL.late()


def ask_guard(
    guarded: Guarded | None,
    effect: AskGuard,
    session_id: str,
    post: Post,
    take: Callable[[float | None], Flow[Item | None]],
    stopped: Callable[[], bool],
) -> Flow[GuardDecision]:
    """Ask the guard on a worker thread and judge the answer by the clock read where it ended.

    All that is the guard's own code runs there: looking its method up, calling it, reading what it returned. When the
    run is to stop the answer does not matter any more: the safe point that follows every check stops it.
    """
    if guarded is None or _lacks(guarded.guard, effect.method):
        return budget.ALLOW
    name, guard = effect.method, guarded.guard
    deadline = time.monotonic() + guarded.timeout_ms / 1000
    while (place := POOL.enter(guard, lambda: post(Wake()))) != "in":
        why = _full(guard) if place == "full" else f"no thread was free for it within {guarded.timeout_ms}ms"
        if place == "full" or time.monotonic() >= deadline:
            return _settle(name, budget.unavailable(name, why))
        if stopped():
            return budget.ALLOW
        yield from take(deadline)
    job, answer = Job("guard", name), _Answer()
    try:
        yield Start(Spawn(job, plain=_call(guard, effect, session_id, deadline, job, answer, post)))
    except (RuntimeError, MemoryError) as error:
        POOL.leave(guard, job)
        return _settle(name, budget.unavailable(name, f"no thread could be started: {error}"))
    while not job.finished and not stopped() and time.monotonic() < deadline:
        yield from take(deadline)
    if not job.finished:
        POOL.give_up(guard, job)
        if isinstance(guard, ProcessGuard):
            guard.kill()
        return budget.ALLOW if stopped() else _settle(name, budget.late(name, guarded.timeout_ms))
    if answer.ended > deadline:
        return _settle(name, budget.late(name, guarded.timeout_ms))
    return _settle(name, answer.decision)


def _call(
    guard: object, effect: AskGuard, session_id: str, deadline: float, job: Job, answer: _Answer, post: Post
) -> Callable[[], None]:
    name = effect.method
    argument = effect.argument.to_dict() if isinstance(effect.argument, Usage) else effect.argument

    def call() -> None:
        _inside.session_id = session_id
        try:
            answer.decision = _decide(guard, name, session_id, argument, deadline)
        except BaseException as error:  # noqa: BLE001 - a guard that raises denies
            answer.decision = budget.raised(name, error)
        _inside.session_id = None
        answer.ended = time.monotonic()
        job.finished = True
        POOL.leave(guard, job)
        post(Finished(job))

    return call


def _decide(guard: Any, name: str, session_id: str, argument: object, deadline: float) -> GuardDecision:
    if isinstance(guard, ProcessGuard):
        return guard.decide(name, session_id, argument, deadline)
    method = getattr(guard, name, None)
    if method is None:
        return budget.ALLOW
    value = method(session_id, argument)
    return budget.ALLOW if name == "record_after_llm" else budget.read_decision(name, value)


def _lacks(guard: object, name: str) -> bool:
    return not isinstance(guard, ProcessGuard) and budget.lacks(guard, name)


def _settle(name: str, decision: GuardDecision) -> GuardDecision:
    if name != "record_after_llm":
        return decision
    if decision.decision == "deny":
        log.warning("record_after_llm was ignored: %s", decision.reason)
    return budget.ALLOW


def _full(guard: object) -> str:
    own = POOL.late_of(guard) >= MAX_PER_GUARD
    if own:
        return f"{MAX_PER_GUARD} of its calls are still running past their time limit"
    return f"{MAX_ALL} guard calls of this process are still running past their time limit"
