"""How an agent leaves: on ``close``, and when the interpreter exits with everything left open (§1)."""

from __future__ import annotations

import asyncio
import atexit
import time
import weakref
from collections.abc import Callable

from ..effects import Flow, Stopped
from ..hooking import HookContext
from .core import STOP_WAIT_S, AgentCore, SessionCore
from .drive import AsyncMailbox, SyncMailbox, adrive, drive
from .hooks import HookDesk, Waiting, take_plainly
from .jobs import Post
from .plain_world import PlainWorld
from .running import LEAVING

EXIT = Stopped("interrupt", "the interpreter exits", grace_ms=500)
EXIT_WAIT_S = 0.8

LAST_WORDS_S = 5.0
"""How long all ``session_end`` hooks of a session together may take."""

_open: weakref.WeakSet[AgentCore] = weakref.WeakSet()
_registered: list[bool] = []


def watch_exit(core: AgentCore) -> None:
    """See to it that live runs are interrupted and let go when the interpreter exits."""
    if not _registered:
        _registered.append(True)
        atexit.register(_at_exit)
    _open.add(core)


def close_now(core: AgentCore, stopped: Stopped = LEAVING, wait_s: float = STOP_WAIT_S) -> None:
    """Interrupt live runs, wait for them, close the file. Idempotent. A scoped agent's file is its parent's."""
    if core.closed:
        return
    core.ended = True
    _stop_all(core, stopped)
    _wait_all(core, wait_s)
    for session in _unended(core):
        end_session(session)
    _close_model(core)
    if core.parent is None:
        core.store.close()
    _forget(core)


async def close_soon(core: AgentCore, stopped: Stopped = LEAVING, wait_s: float = STOP_WAIT_S) -> None:
    """The same without blocking the loop that the runs are on."""
    if core.closed:
        return
    core.ended = True
    _stop_all(core, stopped)
    until = time.monotonic() + wait_s
    while core.operations() and time.monotonic() < until:  # noqa: ASYNC110 - the runs may be on another loop
        await asyncio.sleep(0.01)
    for session in _unended(core):
        await end_session_soon(session)
    if core.owns_model:
        await asyncio.to_thread(_close_model, core)
    if core.parent is None:
        await core.store.aclose()
    _forget(core)


def end_session(core: SessionCore) -> None:
    """Tell the ``session_end`` hooks of a session that was closed, once."""
    mailbox = SyncMailbox()
    drive(_last_words(core, mailbox.post), core.agent.store, PlainWorld(core.env), mailbox, core.agent.workers)


async def end_session_soon(core: SessionCore) -> None:
    """The same on a loop."""
    mailbox = AsyncMailbox.here()
    await adrive(_last_words(core, mailbox.post), core.agent.store, PlainWorld(core.env), mailbox, core.agent.workers)


def _last_words(core: SessionCore, post: Post) -> Flow[None]:
    core.agent.with_last_words.discard(core)
    if not core.hooks.end_once():
        return
    waiting = Waiting(post, take_plainly, bool, leave_by=time.monotonic() + LAST_WORDS_S)
    yield from HookDesk(core.hooks, core.tags, waiting).ask(HookContext("session_end", core.session_id))


def _unended(core: AgentCore) -> list[SessionCore]:
    return [session for session in list(core.with_last_words) if session.agent.is_within(core)]


def _close_model(core: AgentCore) -> None:
    """Release the model that was made here from its name; one that the host gave is the host's."""
    closing: Callable[[], None] | None = getattr(core.model, "close", None)
    if closing is not None and core.owns_model:
        closing()


def _forget(core: AgentCore) -> None:
    for guard in list(core.guards):
        guard.close()
    if core.parent is None:
        core.workers.close()
        _open.discard(core)


def _stop_all(core: AgentCore, stopped: Stopped) -> None:
    for operation in core.operations().values():
        operation.request_stop(stopped)


def _wait_all(core: AgentCore, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    for operation in core.operations().values():
        operation.wait(max(0.0, until - time.monotonic()))


def _at_exit() -> None:
    for core in list(_open):
        _stop_all(core, EXIT)
    until = time.monotonic() + EXIT_WAIT_S
    for core in list(_open):
        _wait_all(core, max(0.0, until - time.monotonic()))
        core.ended = True
        core.store.close()
