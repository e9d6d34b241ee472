"""An operation on a session's log that takes a moment and runs no turn: admitted and claimed as one, never stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from .. import reads
from ..effects import Flow, Read, SafePoint, Stopped
from ..errors import SessionBusy
from ..log import Log
from ..reads import LastRun
from ..writes import RunIds
from .admitting import Assignment, Order, claim, give_back, log_of, make_order
from .core import STOP_WAIT_S, SessionCore
from .drive import Take

R = TypeVar("R")

LOOK_S = 0.01


class _Short:
    """The session's live operation meanwhile: too short to be stopped."""

    stopping = False

    def __init__(self, core: SessionCore) -> None:
        self.core = core
        self.done = threading.Event()

    def request_stop(self, stopped: Stopped) -> None:
        """Whoever leaves waits for it instead."""

    def look_again(self) -> None:
        """It takes nothing from the inbox."""

    def wait(self, timeout_s: float) -> bool:
        """Whether it is over."""
        return self.done.wait(timeout_s)


def shortly(core: SessionCore, body: Callable[[RunIds, Log, LastRun | None], Flow[R]]) -> Flow[R]:
    """Claim the session, read its log and its newest run, do ``body``, which releases the claim with what it writes.

    To be driven by `finishing`, which sees it through.

    Raises:
        SessionBusy: another operation is active, here or elsewhere.
    """

    def claimed(order: Order, ids: RunIds) -> Flow[R]:
        log = yield from log_of(order, ids)
        last = yield from Read(reads.last_run(ids.session_pk))
        result = yield from body(ids, log, last)
        core.keep_log(None)
        return result

    return (yield from _alone(core, claimed))


def take_over(core: SessionCore, *, force: bool) -> Flow[None]:
    """Raise the session's fence, so that whoever had it writes nothing more, and let it go. Driven by `finishing`.

    Raises:
        SessionBusy: an operation of this process is active, or the owner lives and ``force`` is not set.
    """
    yield from _alone(core, lambda order, ids: give_back(ids), force=force)


def _alone(core: SessionCore, claimed: Callable[[Order, RunIds], Flow[R]], *, force: bool = False) -> Flow[R]:
    operation = _Short(core)
    yield from _admit(core, operation)
    try:
        order = make_order(core, Assignment(), admitted=True)
        order.log = None
        ids = yield from claim(order, force=force)
        try:
            return (yield from claimed(order, ids))
        except Exception:
            yield from give_back(ids)
            raise
    finally:
        core.agent.dismiss(core.session_id, operation)
        operation.done.set()


def _admit(core: SessionCore, operation: _Short) -> Flow[None]:
    """Wait for an operation that is already on its way out, as a turn does; in vain when the caller leaves first."""
    until = time.monotonic() + STOP_WAIT_S
    while core.agent.admit(core.session_id, operation) is not None:
        if time.monotonic() >= until or (yield from SafePoint()) is not None:
            raise SessionBusy(core.session_id, holder=core.agent.store.owner)
        yield Take(LOOK_S)
