"""Two interpreters of one flow. Neither knows what a turn is.

Effects of three kinds reach them: a commit, a read, and the three primitives below. Everything else is taken apart into
those by the flow's own world (`host.world`), once for both.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..effects import Commit, Effect, Flow, IsSteered, Now, Read, SafePoint, Stopped
from ..plan import Store
from .jobs import Item, Spawn
from .workers import Workers

R = TypeVar("R")


@dataclass(slots=True)
class Take(Effect["Item | None"]):
    """The next item of the mailbox, or None after ``timeout_s`` (None waits for ever)."""

    timeout_s: float | None


@dataclass(slots=True)
class Start(Effect[None]):
    """Run a job beside the flow."""

    spawn: Spawn


class World(Protocol):
    """What a flow needs beside a store: how its own effects are taken apart, and what happens after a commit."""

    def interpret(self, effect: Effect[Any]) -> Flow[Any]: ...

    def committed(self, effect: Commit) -> None: ...

    def now_ms(self) -> int: ...

    def is_steered(self) -> bool: ...

    def inbox_due(self) -> bool: ...

    def stop_now(self) -> Stopped | None: ...

    def cancelled(self) -> bool:
        """The task that drives the flow was cancelled.

        True: the flow is told at its next safe point. False: it is short, and the cancellation is passed on once what
        was queued is done.
        """
        ...


class SyncMailbox:
    """Items from any thread, for a flow that runs on a thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self.post: Callable[[Item], None] = self._queue.put

    def take(self, timeout_s: float | None) -> Item | None:
        """The next item, or None when the time is over."""
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None


class AsyncMailbox:
    """Items from any thread, for a flow that runs on a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue: asyncio.Queue[Item] = asyncio.Queue()
        self._loop = loop

    @classmethod
    def here(cls) -> AsyncMailbox:
        """A mailbox of the running loop."""
        return cls(asyncio.get_running_loop())

    def post(self, item: Item) -> None:
        """Put an item in, from the loop or from any thread. After the loop has closed nobody is left to tell."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._queue.put_nowait(item)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    async def take(self, timeout_s: float | None) -> Item | None:
        """The next item, or None when the time is over."""
        if not self._queue.empty():
            return self._queue.get_nowait()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._queue.get()
        except TimeoutError:
            return None


def drive(flow: Flow[R], store: Store, world: World, mailbox: SyncMailbox, workers: Workers) -> R:
    """Run ``flow`` to its end on this thread."""
    try:
        effect = next(flow)
        while True:
            try:
                answer = _perform(effect, store, world, mailbox, workers)
            except Exception as error:  # noqa: BLE001 - thrown into the flow, which decides
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as stop:
        result: R = stop.value
        return result


def _perform(effect: Effect[Any], store: Store, world: World, mailbox: SyncMailbox, workers: Workers) -> Any:
    # The frequent ones first: a round has a dozen and a half of them.
    if isinstance(effect, Now):
        return world.now_ms()
    if isinstance(effect, Take):
        return mailbox.take(effect.timeout_s)
    if isinstance(effect, SafePoint) and not (effect.look or world.inbox_due()):
        return world.stop_now()
    if isinstance(effect, IsSteered) and not world.inbox_due():
        return world.is_steered()
    if isinstance(effect, Commit):
        returned = store.commit(effect.plan)
        world.committed(effect)
        return returned
    if isinstance(effect, Start):
        return _start_on_threads(effect.spawn, workers)
    if isinstance(effect, Read):
        return store.read(effect.query)
    return drive(world.interpret(effect), store, world, mailbox, workers)


async def adrive(flow: Flow[R], store: Store, world: World, mailbox: AsyncMailbox, workers: Workers) -> R:
    """Run ``flow`` to its end on this loop."""

    async def perform(effect: Effect[Any]) -> Any:
        if isinstance(effect, Commit):
            returned = await _through_cancel(store.acommit(effect.plan), world)
            world.committed(effect)
            return returned
        if isinstance(effect, Read):
            return await _through_cancel(store.aread(effect.query), world)
        if isinstance(effect, Now):
            return world.now_ms()
        if isinstance(effect, SafePoint) and not (effect.look or world.inbox_due()):
            return world.stop_now()
        if isinstance(effect, IsSteered) and not world.inbox_due():
            return world.is_steered()
        if isinstance(effect, Take):
            return await _take(mailbox, effect.timeout_s, world)
        if isinstance(effect, Start):
            return _start_on_loop(effect.spawn, workers)
        return await adrive(world.interpret(effect), store, world, mailbox, workers)

    try:
        effect = next(flow)
        while True:
            try:
                answer = await perform(effect)
            except Exception as error:  # noqa: BLE001 - thrown into the flow, which decides
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as stop:
        result: R = stop.value
        return result


class _Kept(asyncio.Task[R]):
    """A task that is not cancelled with all others of its loop, as ``asyncio.run`` does when it ends."""

    def cancel(self, msg: Any = None) -> bool:
        """It is short, and its answer must not be lost: whoever awaits it is told."""
        return False


async def _through_cancel(body: Coroutine[Any, Any, R], world: World) -> R:
    """Await ``body`` to its end: a cancelled task must not lose what a commit has already done."""
    inner = _Kept(body)
    passed_on: asyncio.CancelledError | None = None
    while not inner.done():
        try:
            await asyncio.wait({inner})
        except asyncio.CancelledError as error:
            if not world.cancelled():
                passed_on = error
    if passed_on is not None and inner.exception() is None:
        raise passed_on
    return inner.result()


async def _take(mailbox: AsyncMailbox, timeout_s: float | None, world: World) -> Item | None:
    try:
        return await mailbox.take(timeout_s)
    except asyncio.CancelledError:
        if not world.cancelled():
            raise
        return None


def _start_on_threads(spawn: Spawn, workers: Workers) -> None:
    if spawn.coroutine is not None:
        spawn.job.cancel = workers.submit_async(spawn.coroutine, spawn.context)
        return
    plain = spawn.plain
    if plain is not None:
        workers.submit(lambda: spawn.context.run(plain))


def _start_on_loop(spawn: Spawn, workers: Workers) -> None:
    if spawn.coroutine is None:
        _start_on_threads(spawn, workers)
        return
    task = asyncio.get_running_loop().create_task(spawn.coroutine(), context=spawn.context)
    # The job keeps its task alive: a loop holds tasks only weakly.
    spawn.job.cancel = lambda: None if task.done() else _cancel(task)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
