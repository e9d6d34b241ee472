"""Events of a running run for the one who streams it: a bounded buffer that never makes the run wait (§1)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from enum import Enum

from ..events import Event

LIMIT = 1024


class Signal(Enum):
    """What :meth:`LiveEvents.take` says when it has no event to give."""

    EMPTY = "empty"
    OVERFLOWED = "overflowed"
    CLOSED = "closed"


class LiveEvents:
    """The writer never waits. Beyond :data:`LIMIT` events the reader is told to go on from the file."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._events: deque[Event] = deque()
        self._lock = threading.Lock()
        self._notify = notify
        self._overflowed = False
        self._closed = False

    def put(self, event: Event) -> None:
        """Add an event, unless the buffer is full: then this and what follows is left to the file."""
        with self._lock:
            if self._overflowed or len(self._events) >= LIMIT:
                self._overflowed = True
            else:
                self._events.append(event)
        self._notify()

    def close(self) -> None:
        """Nothing will follow."""
        with self._lock:
            self._closed = True
        self._notify()

    def take(self) -> Event | Signal:
        """The next event. OVERFLOWED is said once: from then on the buffer fills again, and the reader must read the
        file up to now; what it finds there may come from the buffer a second time."""
        with self._lock:
            if self._events:
                return self._events.popleft()
            if self._overflowed:
                self._overflowed = False
                return Signal.OVERFLOWED
            return Signal.CLOSED if self._closed else Signal.EMPTY
