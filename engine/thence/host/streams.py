"""What ``session.stream`` and ``session.tail`` give back: iterators over events, in both faces (§1, §10)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType

from ..effects import Flow
from ..events import Event
from ..results import SendResult, result_of
from . import operations
from .core import STOP_WAIT_S
from .live import LiveEvents, Signal
from .running import LEAVING, AsyncRunning, SyncRunning
from .tailing import Tail


class _Catching:
    """Drops what the buffer repeats after the reader went on from the file; each run numbers its own events."""

    def __init__(self) -> None:
        self.last: dict[str | None, int] = {}

    def fresh(self, event: Event) -> bool:
        run_id, sequence = event.metadata["run_id"], event.metadata["sequence"]
        if sequence is None:
            return True
        if sequence <= self.last.get(run_id, -1):
            return False
        self.last[run_id] = sequence
        return True


class RunStream(Iterator[Event]):
    """Events of one run as they happen. The run has started when ``stream`` returns.

    Leaving early (``close``, the end of a ``with`` block, or dropping the iterator) interrupts the run: it can be
    resumed. After the last event of a failed run its error is raised. A slow reader never makes the run wait.
    """

    def __init__(self, running: SyncRunning, do: Callable[[Flow[list[Event]]], list[Event]]) -> None:
        self._running, self._do = running, do
        self._arrived = threading.Event()
        self._from_file: list[Event] = []
        self._catching = _Catching()
        running.start(self._arrived.set)

    def __iter__(self) -> RunStream:
        return self

    def __next__(self) -> Event:
        while True:
            if self._from_file:
                event = self._from_file.pop(0)
            else:
                taken = _buffer(self._running.events).take()
                if isinstance(taken, Event):
                    event = taken
                elif taken is Signal.CLOSED:
                    self._running.result()
                    raise StopIteration
                elif taken is Signal.OVERFLOWED:
                    self._read_on()
                    continue
                else:
                    self._wait()
                    continue
            if self._catching.fresh(event):
                return event

    def _wait(self) -> None:
        try:
            self._arrived.wait(1.0)
        except BaseException:
            self.close()  # Ctrl-C: interrupt, let go, and go on its way
            raise
        self._arrived.clear()

    def _read_on(self) -> None:
        world = self._running.world
        if world is not None and world.station.ids is not None:
            core, run_id = self._running.core, world.station.ids.run_id
            self._from_file = self._do(operations.all_events(core, run_id, self._catching.last.get(run_id)))

    def wait(self) -> SendResult:
        """How the run ended; waits for it. Raises the run's error, or OutputInvalid."""
        return result_of(self._running.join(), self._running.assignment.output)

    @property
    def result(self) -> SendResult:
        """The same as :meth:`wait`."""
        return self.wait()

    def close(self) -> None:
        """Leave: interrupt the run if it is still going, and wait until it has let go of the session."""
        if not self._running.done.is_set():
            self._running.request_stop(LEAVING)
            self._running.wait(STOP_WAIT_S)

    def __enter__(self) -> RunStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_running") and not self._running.done.is_set():
            self._running.request_stop(LEAVING)


class AsyncRunStream(AsyncIterator[Event]):
    """Events of one run as they happen; the run starts with the first step of the iteration, or with ``async with``.

    Leaving early interrupts the run, as in :class:`RunStream`.
    """

    def __init__(self, running: AsyncRunning, do: Callable[[Flow[list[Event]]], Awaitable[list[Event]]]) -> None:
        self._running, self._do = running, do
        self._arrived = asyncio.Event()
        self._from_file: list[Event] = []
        self._catching = _Catching()
        self._started = False

    def __aiter__(self) -> AsyncRunStream:
        return self

    async def _start(self) -> None:
        if not self._started:
            self._started = True
            await self._running.start(self._arrived.set)

    async def __anext__(self) -> Event:
        await self._start()
        while True:
            if self._from_file:
                event = self._from_file.pop(0)
            else:
                taken = _buffer(self._running.events).take()
                if isinstance(taken, Event):
                    event = taken
                elif taken is Signal.CLOSED:
                    self._running.result()
                    raise StopAsyncIteration
                elif taken is Signal.OVERFLOWED:
                    await self._read_on()
                    continue
                else:
                    await self._wait()
                    continue
            if self._catching.fresh(event):
                return event

    async def _wait(self) -> None:
        try:
            await self._arrived.wait()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        self._arrived.clear()

    async def _read_on(self) -> None:
        world = self._running.world
        if world is not None and world.station.ids is not None:
            core, run_id = self._running.core, world.station.ids.run_id
            flow = operations.all_events(core, run_id, self._catching.last.get(run_id))
            self._from_file = await self._do(flow)

    async def wait(self) -> SendResult:
        """How the run ended; waits for it. Raises the run's error, or OutputInvalid."""
        await self._start()
        return result_of(await self._running.join(), self._running.assignment.output)

    async def result(self) -> SendResult:
        """The same as :meth:`wait`."""
        return await self.wait()

    async def aclose(self) -> None:
        """Leave: interrupt the run if it is still going, and wait until it has let go of the session."""
        if self._started and not self._running.done.is_set():
            self._running.request_stop(LEAVING)
            await self._running.ended(STOP_WAIT_S)

    async def __aenter__(self) -> AsyncRunStream:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if getattr(self, "_started", False) and not self._running.done.is_set():
            self._running.request_stop(LEAVING)


def _buffer(events: LiveEvents | None) -> LiveEvents:
    if events is None:
        raise RuntimeError("the run was not started for streaming")
    return events


def follow(tail: Tail, do: Callable[[Flow[list[Event]]], list[Event]]) -> Iterator[Event]:
    """Events of a run from the file, until it is over."""
    while not tail.done:
        yield from do(tail.read_on())
        if not tail.done:
            time.sleep(tail.wait_s)


async def afollow(tail: Tail, do: Callable[[Flow[list[Event]]], Awaitable[list[Event]]]) -> AsyncIterator[Event]:
    """Events of a run from the file, until it is over."""
    while not tail.done:
        for event in await do(tail.read_on()):
            yield event
        if not tail.done:
            await asyncio.sleep(tail.wait_s)
