"""Short flows that claim a session are driven to their end, whoever leaves meanwhile (§1, §8).

Left half-way they would leave the claim in the file: everybody else would be told that the session is busy, until this
process ends. So Ctrl-C and a cancelled task wait for the end, and then go on their way.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
from typing import Any

from ..effects import AskHooks, Flow, Stopped
from .core import STOP_WAIT_S, SessionCore
from .drive import AsyncMailbox, R, SyncMailbox, adrive, drive
from .hooks import HookDesk, Waiting, take_plainly
from .jobs import Post
from .plain_world import PlainWorld
from .running import LEAVING


class _Finishing(PlainWorld):
    """A world that remembers that its caller left, and tells the flow where it has not claimed anything yet.

    The only hooks that such a flow can have asked are those of the end of the run that it ends.
    """

    def __init__(self, core: SessionCore, post: Post) -> None:
        super().__init__(core.env)
        self.left = False
        # As after any order to stop, they have a second.
        self._desk = HookDesk(core.hooks, core.tags, Waiting(post, take_plainly, lambda: True))

    def interpret(self, effect: Any) -> Flow[Any]:
        """Ask hooks; nothing else of a turn is known here."""
        return self._desk.ask(effect.context) if isinstance(effect, AskHooks) else super().interpret(effect)

    def cancelled(self) -> bool:
        """The flow goes on; who drives it passes the cancellation on afterwards."""
        self.left = True
        return True

    def stop_now(self) -> Stopped | None:
        """Whether there is anybody left to do it for."""
        return LEAVING if self.left else None


def finish(core: SessionCore, flow: Flow[R]) -> R:
    """Drive ``flow`` on a daemon thread while this one waits, as for a turn: a signal hits the one who waits.

    Raises:
        KeyboardInterrupt: after the end of the flow; a second one does not wait for it.
    """
    mailbox = SyncMailbox()
    world = _Finishing(core, mailbox.post)
    ended: concurrent.futures.Future[R] = concurrent.futures.Future()

    def body() -> None:
        try:
            ended.set_result(drive(flow, core.agent.store, world, mailbox, core.agent.workers))
        except BaseException as error:  # noqa: BLE001 - raised to who waits
            ended.set_exception(error)

    context = contextvars.copy_context()
    core.agent.workers.submit(lambda: context.run(body))
    try:
        # A wait without a time limit cannot be interrupted on every platform.
        while not ended.done():
            concurrent.futures.wait((ended,), 1.0)
    except BaseException:
        world.left = True
        concurrent.futures.wait((ended,), STOP_WAIT_S)
        raise
    return ended.result()


async def finish_soon(core: SessionCore, flow: Flow[R]) -> R:
    """The same in the caller's own task, on its loop.

    Raises:
        asyncio.CancelledError: after the end of the flow, however often the task was cancelled.
    """
    mailbox = AsyncMailbox.here()
    world = _Finishing(core, mailbox.post)
    try:
        result = await adrive(flow, core.agent.store, world, mailbox, core.agent.workers)
    except Exception as error:
        if world.left:
            raise asyncio.CancelledError from error
        raise
    if world.left:
        raise asyncio.CancelledError
    return result
