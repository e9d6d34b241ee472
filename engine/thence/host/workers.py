"""Daemon threads that are used again, and a loop for async callables of the sync face.

The standard library's pool joins its threads at interpreter exit: one hung tool would keep a process alive for ever.
These threads never do. Idle ones leave after ten seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any

IDLE_S = 10.0


class Workers:
    """Runs functions on daemon threads. A function must not raise: what it has to say, it posts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def submit(self, function: Callable[[], None]) -> None:
        """Run ``function`` soon, on an idle thread or a new one."""
        with self._lock:
            box = self._idle.pop() if self._idle else None
        if box is not None:
            box.put(function)
            return
        box = queue.SimpleQueue[Callable[[], None] | None]()
        box.put(function)
        threading.Thread(target=self._work, args=(box,), name=self._name, daemon=True).start()

    def submit_async(
        self, body: Callable[[], Coroutine[Any, Any, None]], context: contextvars.Context
    ) -> Callable[[], None]:
        """Run a coroutine on the pool's own loop, in ``context``; returns what cancels it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(self._loop,), name=f"{self._name}-loop", daemon=True).start()
            loop = self._loop
        started: list[asyncio.Task[None]] = []
        loop.call_soon_threadsafe(lambda: started.append(loop.create_task(body(), context=context)))
        return lambda: _call_soon(loop, lambda: _cancel(started))

    def close(self) -> None:
        """Let idle threads and the loop go. Busy ones are left to end by themselves."""
        with self._lock:
            self._closed = True
            boxes, self._idle = self._idle, []
            loop, self._loop = self._loop, None
        for box in boxes:
            box.put(None)
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _work(self, box: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while True:
            try:
                function = box.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if box in self._idle:
                        self._idle.remove(box)
                        return
                continue  # it was handed work in this very moment
            if function is None:
                return
            function()
            del function  # an idle thread must not keep a tool's values alive
            with self._lock:
                if self._closed:
                    return
                self._idle.append(box)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_all())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    # After the loop has closed nothing of it is left to cancel.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
