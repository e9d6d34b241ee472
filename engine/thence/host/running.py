"""One live operation of a session, in either face: started, watched, stopped, waited for (§1).

The sync face drives a turn on a daemon thread and lets the caller's thread wait: Ctrl-C then hits the one who waits,
never a commit. The async face drives it in a task of its own, for the same reason.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable

from ..effects import Flow, Stopped
from ..endings import Outcome
from ..errors import SessionBusy
from .admitting import Assignment, make_order
from .compacting import compact_flow
from .core import STOP_WAIT_S, SessionCore
from .drive import AsyncMailbox, SyncMailbox, adrive, drive
from .live import LiveEvents
from .resuming import resume_flow
from .sending import send_flow
from .world import RunWorld

LOOK_S = 0.01
LEAVING = Stopped("interrupt", "the caller went away")
KEYBOARD = Stopped("interrupt", "keyboard interrupt")


class _Running:
    """What both faces have in common: the world, the buffer of who streams, and the place in the registry."""

    def __init__(self, core: SessionCore, assignment: Assignment, *, streaming: bool = False) -> None:
        self.core, self.assignment = core, assignment
        self.streaming = streaming
        self.stopping = False
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        self.world: RunWorld | None = None
        self._early: Stopped | None = None
        self.events: LiveEvents | None = None

    def _prepare(
        self,
        post: Callable[..., None],
        notify: Callable[[], None],
        *,
        prefer_async: bool,
        begun: Callable[[], None] | None,
    ) -> tuple[Flow[Outcome], RunWorld]:
        core = self.core
        setup = core.setup(streaming=self.streaming)
        buffer = LiveEvents(notify) if self.streaming else None
        show = None if buffer is None else buffer.put
        self.events = buffer
        self.world = world = RunWorld(core.surroundings(setup, show, prefer_async=prefer_async), post)
        if self._early is not None:
            world.station.request_stop(self._early)
        order = make_order(core, self.assignment, setup, begun, admitted=True)
        order.stopping = lambda: world.station.stopped is not None
        if self.assignment.compact:
            return core.within_scope(compact_flow(order, world)), world
        if self.assignment.resume is None:
            return core.within_scope(send_flow(order, world)), world
        return core.within_scope(resume_flow(order, world, self.assignment.resume)), world

    def _ended(self) -> None:
        self.core.agent.dismiss(self.core.session_id, self)
        self.done.set()
        if self.events is not None:
            self.events.close()

    def request_stop(self, stopped: Stopped) -> None:
        """Ask the run to stop at its next safe point. From any thread."""
        self.stopping = True
        self._early = stopped
        if self.world is not None:
            self.world.station.request_stop(stopped)

    def look_again(self) -> None:
        """Something is in the inbox."""
        if self.world is not None:
            self.world.station.look_again()

    def wait(self, timeout_s: float) -> bool:
        """Whether the operation is over, at the latest after ``timeout_s``."""
        return self.done.wait(timeout_s)

    @property
    def was_replayed(self) -> bool:
        """It turned out that nothing was to be done: a recorded outcome was given."""
        return self.outcome is not None and self.outcome.replayed

    def result(self) -> Outcome:
        """How it ended. Raises what the caller is to be told."""
        if self.error is not None:
            raise self.error
        if self.outcome is None:
            raise SessionBusy(self.core.session_id, holder=self.core.agent.store.owner)
        if self.outcome.error is not None:
            raise self.outcome.error
        return self.outcome


class SyncRunning(_Running):
    """An operation on a daemon thread."""

    def start(self, notify: Callable[[], None], begun: Callable[[], None] | None = None) -> None:
        """Admit and start; ``begun`` is called once the run is in the file. Raises SessionBusy, SessionClosed."""
        self.core.check_open()
        agent = self.core.agent
        while (earlier := agent.admit(self.core.session_id, self)) is not None:
            if not earlier.wait(STOP_WAIT_S):
                raise SessionBusy(self.core.session_id, holder=agent.store.owner)
        try:
            mailbox = SyncMailbox()
            flow, world = self._prepare(mailbox.post, notify, prefer_async=False, begun=begun)

            def body() -> None:
                try:
                    self.outcome = drive(flow, agent.store, world, mailbox, agent.workers)
                except BaseException as error:  # noqa: BLE001 - raised to whoever asks for the result
                    self.error = error
                self._ended()

            context = contextvars.copy_context()  # the caller's: tools and models run in it
            agent.workers.submit(lambda: context.run(body))
        except BaseException:
            self._ended()  # what never started must not keep the session busy
            raise

    def start_and_begin(self) -> None:
        """Start, and wait until the run is in the file, to stay. Raises what kept it from beginning."""
        begun = threading.Event()
        self.start(_nothing, begun.set)
        while not begun.wait(0.05):
            if self.done.is_set():
                self.result()
                return

    def join(self, *, leaving: bool = True) -> Outcome:
        """Wait for the end. Ctrl-C interrupts the run, waits until it has let go, and goes on its way; with ``leaving``
        False the run goes on by itself."""
        try:
            # A wait without a time limit cannot be interrupted on every platform.
            while not self.done.wait(1.0):
                pass
        except BaseException:
            if leaving:
                self.request_stop(KEYBOARD)
                self.done.wait(STOP_WAIT_S)
            raise
        return self.result()


class AsyncRunning(_Running):
    """An operation in a task of the caller's loop."""

    _task: asyncio.Task[None] | None = None

    async def start(self, notify: Callable[[], None], begun: Callable[[], None] | None = None) -> None:
        """Admit and start, on the running loop; see :meth:`SyncRunning.start`."""
        self.core.check_open()
        agent = self.core.agent
        waited = 0.0
        while (earlier := agent.admit(self.core.session_id, self)) is not None:
            if waited > STOP_WAIT_S and not earlier.wait(0):
                raise SessionBusy(self.core.session_id, holder=agent.store.owner)
            # It may be of another loop or thread: look again instead of waiting on something of this loop.
            await asyncio.sleep(LOOK_S)
            waited += LOOK_S
        try:
            mailbox = AsyncMailbox.here()
            flow, world = self._prepare(mailbox.post, notify, prefer_async=True, begun=begun)
        except BaseException:
            self._ended()
            raise

        async def body() -> None:
            try:
                self.outcome = await adrive(flow, agent.store, world, mailbox, agent.workers)
            except BaseException as error:  # noqa: BLE001 - raised to whoever asks for the result
                self.error = error
            self._ended()

        self._task = asyncio.get_running_loop().create_task(body())

    async def start_and_begin(self) -> None:
        """Start, and wait until the run is in the file, to stay. Raises what kept it from beginning."""
        begun = asyncio.Event()
        await self.start(_nothing, begun.set)
        waiting = asyncio.ensure_future(begun.wait())
        if self._task is not None:
            await asyncio.wait({self._task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not begun.is_set():
            self.result()

    async def join(self, *, leaving: bool = True) -> Outcome:
        """Wait for the end. Cancelling the caller interrupts the run, waits until it has let go, and is passed on; with
        ``leaving`` False the run goes on by itself."""
        if self._task is None:
            raise SessionBusy(self.core.session_id)
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if leaving:
                self.request_stop(LEAVING)
                await self.ended(STOP_WAIT_S)
            raise
        return self.result()

    async def ended(self, timeout_s: float) -> bool:
        """Whether the operation is over, at the latest after ``timeout_s``."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=timeout_s)
        return self.done.is_set()


def _nothing() -> None:
    """Nobody streams."""
