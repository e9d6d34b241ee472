"""How many threads guards may hold: so many each, so many together, in the whole process (§6)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from .jobs import Job

MAX_PER_GUARD = 8
MAX_ALL = 64


class GuardPool:
    """Places for calls of guards. A call keeps its place until it returns, however late; it is *late* once nobody waits
    for it any more. Since no more calls run than may be late, no burst of calls can leave more threads behind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, int] = {}
        self._late: dict[int, int] = {}
        self._waiting: list[Callable[[], None]] = []

    def enter(self, guard: object, wake: Callable[[], None]) -> Literal["in", "wait", "full"]:
        """Take a place. ``wait``: there is none now, and ``wake`` is called when one may be free. ``full``: those who
        have the places are late, all of them."""
        with self._lock:
            if self._late.get(id(guard), 0) >= MAX_PER_GUARD or sum(self._late.values()) >= MAX_ALL:
                return "full"
            if self._running.get(id(guard), 0) >= MAX_PER_GUARD or sum(self._running.values()) >= MAX_ALL:
                self._waiting.append(wake)
                return "wait"
            self._running[id(guard)] = self._running.get(id(guard), 0) + 1
            return "in"

    def give_up(self, guard: object, job: Job) -> None:
        """Nobody waits for this call any more."""
        with self._lock:
            if not job.finished:
                job.dropped = True
                self._late[id(guard)] = self._late.get(id(guard), 0) + 1
        self._wake()

    def leave(self, guard: object, job: Job) -> None:
        """The call has returned, or was never started."""
        with self._lock:
            _less(self._running, id(guard))
            if job.dropped:
                _less(self._late, id(guard))
        self._wake()

    def late(self) -> int:
        """How many calls are past their time limit and still running."""
        with self._lock:
            return sum(self._late.values())

    def late_of(self, guard: object) -> int:
        """How many calls of this guard are."""
        with self._lock:
            return self._late.get(id(guard), 0)

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()


def _less(counts: dict[int, int], key: int) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


POOL = GuardPool()
"""One for the process: it is the process that the bounds protect."""
