"""Threads of a host's callables that are past their time limit and still running: counted, and bounded (§6, §10).

A thread cannot be ended from outside. So one object may hold only a few of them, and the process only some dozens; who
would be one more is not called.
"""

from __future__ import annotations

import threading

from .jobs import Job


class StuckThreads:
    """The count for one kind of callable. Process-wide: the bound protects the process."""

    def __init__(self, kind: str, most_each: int = 8, most: int = 64) -> None:
        self._kind, self._most_each, self._most = kind, most_each, most
        self._lock = threading.Lock()
        self._by_owner: dict[int, int] = {}

    @property
    def count(self) -> int:
        """How many there are now."""
        with self._lock:
            return sum(self._by_owner.values())

    def no_room(self, owner: object) -> str | None:
        """Why ``owner`` must not be called now, or None."""
        with self._lock:
            if self._by_owner.get(id(owner), 0) >= self._most_each:
                return f"{self._most_each} of its calls are still running past their time limit"
            if sum(self._by_owner.values()) >= self._most:
                return f"{self._most} {self._kind} calls of this process are still running past their time limit"
        return None

    def enter(self, owner: object, job: Job) -> None:
        """Nobody waits for the job any more. Its thread refers to ``owner``, so that the id stays its own."""
        with self._lock:
            if not job.finished:
                job.dropped = True
                self._by_owner[id(owner)] = self._by_owner.get(id(owner), 0) + 1

    def leave(self, owner: object, job: Job) -> None:
        """The job, which has set ``finished``, is over: on its own thread."""
        with self._lock:
            if job.dropped:
                left = self._by_owner[id(owner)] - 1
                if left:
                    self._by_owner[id(owner)] = left
                else:
                    del self._by_owner[id(owner)]
