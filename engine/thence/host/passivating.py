"""Letting sessions go in good order, so that they can go on elsewhere: one of them, or all with their file (§8).

A passivation is an interrupt with a deadline. Up to it running tools may still land; when it has passed the session is
given back all the same, and tools that hang are left behind.
"""

from __future__ import annotations

import time
from pathlib import Path

from .. import inbox, reads
from ..effects import Commit, Flow, Now, Read, Stopped
from ..results import Passivated
from .core import AgentCore, SessionCore
from .drive import Take
from .leaving import close_now, close_soon
from .operations import current_run, stream_of
from .station import GRACE_MS

REASON = "passivated"
LOOK_S = 0.02
MARGIN_S = 1.5
"""What writing takes at the end, once nothing is waited for any more; and the quarter second after which an owner
elsewhere looks into its inbox."""


def check_deadline(deadline_ms: object) -> int | None:
    """Raises TypeError for what is neither None nor whole milliseconds."""
    if deadline_ms is None:
        return None
    if isinstance(deadline_ms, bool) or not isinstance(deadline_ms, int):
        raise TypeError(f"'deadline_ms' must be an integer or None, not {type(deadline_ms).__name__}")
    return deadline_ms


def grace_until(deadline_ms: int | None, now_ms: int) -> int:
    """How long tools may still land, in milliseconds: up to the deadline, or as long as after any interrupt."""
    return GRACE_MS if deadline_ms is None else max(0, deadline_ms - now_ms)


def passivate(core: SessionCore, deadline_ms: int | None) -> Flow[bool]:
    """Interrupt what is live, in whatever process, and wait until it has let the session go."""
    deadline_ms = check_deadline(deadline_ms)
    grace_ms = grace_until(deadline_ms, (yield from Now()))
    patience = time.monotonic() + grace_ms / 1000 + MARGIN_S
    operation = core.agent.live.get(core.session_id)
    if operation is not None:
        operation.request_stop(Stopped("interrupt", REASON, grace_ms))
    elif (live := (yield from current_run(core))) is not None and live.status != "parked":
        stream = yield from stream_of(core, live.id)
        payload = {"reason": REASON} if deadline_ms is None else {"reason": REASON, "deadline_ms": deadline_ms}
        if stream is not None:
            order = inbox.tell_owner(stream, "interrupt", payload, now_ms=(yield from Now()))
            yield from Commit(order)
    while True:
        if not (yield from _is_held(core)):
            return True
        if time.monotonic() > patience:
            return False
        yield Take(LOOK_S)


def _is_held(core: SessionCore) -> Flow[bool]:
    if core.session_id in core.agent.live:
        return True
    row = yield from Read(reads.session(core.session_id))
    return row is not None and row.owner is not None and core.agent.owner_alive(row.owner, core.session_id)


def passivate_now(core: AgentCore, deadline_ms: int | None) -> Passivated:
    """Let go of all sessions and close the agent; say whether the one file is whole."""
    stopped, live = _order(core, deadline_ms), sorted(core.operations())
    close_now(core, stopped, stopped.grace_ms / 1000 + MARGIN_S)
    return _done(core, live)


async def passivate_soon(core: AgentCore, deadline_ms: int | None) -> Passivated:
    """The same without blocking the loop."""
    stopped, live = _order(core, deadline_ms), sorted(core.operations())
    await close_soon(core, stopped, stopped.grace_ms / 1000 + MARGIN_S)
    return _done(core, live)


def _order(core: AgentCore, deadline_ms: int | None) -> Stopped:
    return Stopped("interrupt", REASON, grace_until(check_deadline(deadline_ms), core.env.now_ms()))


def _done(core: AgentCore, live: list[str]) -> Passivated:
    left = tuple(session_id for session_id in live if session_id in core.live)
    released = tuple(session_id for session_id in live if session_id not in left)
    # The file of a scoped agent stays open: it is its parent's.
    complete = core.parent is None and not left and _is_one_file(core.store.path)
    return Passivated(complete, released, left)


def _is_one_file(path: Path | None) -> bool:
    """Whether a closed database is all there is: SQLite folds the WAL in and removes it when the last connection of all
    processes goes, and at no other time."""
    return path is not None and path.exists() and not Path(f"{path}-wal").exists()
