"""Ids and time: the only two sources of difference between equal runs (§11).

Every stored id and time comes through a :class:`HostEnv`. Equal inputs under equal environments give equal facts, byte
for byte; with ``max_parallel_tools=1`` also an equal ``iterdump()`` of the closed file, though not equal pages of it.
"""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Protocol

from ..identity import check_id


class IdGenerator(Protocol):
    """Gives new ids. ``lineage`` names a new file and uses up no id."""

    def next_id(self) -> str: ...

    def lineage(self) -> str: ...


class Clock(Protocol):
    """Wall clock of stored times: milliseconds since the epoch. Never used for time limits."""

    def now_ms(self) -> int: ...


class UuidGenerator:
    """Random ids (UUID 4)."""

    def next_id(self) -> str:
        return str(uuid.uuid4())

    def lineage(self) -> str:
        return str(uuid.uuid4())


class SequentialIdGenerator:
    """``<prefix>-0``, ``<prefix>-1``, ... Safe to share between threads."""

    def __init__(self, prefix: str) -> None:
        self._prefix = check_id(prefix, "sequential_id_prefix")
        self._next = 0
        self._lock = threading.Lock()

    def next_id(self) -> str:
        with self._lock:
            number, self._next = self._next, self._next + 1
        return f"{self._prefix}-{number}"

    def lineage(self) -> str:
        return f"{self._prefix}-lineage"


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class FixedClock:
    """Stands still at ``ms`` until it is :meth:`set` or :meth:`advance` d."""

    def __init__(self, ms: int) -> None:
        self._ms = _check_ms(ms)

    def now_ms(self) -> int:
        return self._ms

    def set(self, ms: int) -> int:
        """Move to ``ms``; returns the time before."""
        before, self._ms = self._ms, _check_ms(ms)
        return before

    def advance(self, delta_ms: int) -> int:
        """Move by ``delta_ms``; returns the new time."""
        self.set(self._ms + delta_ms)
        return self._ms


@dataclass(frozen=True, slots=True)
class HostEnv:
    """Where ids and times come from. Default: random ids and the machine's clock."""

    id_generator: IdGenerator = field(default_factory=UuidGenerator)
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True, slots=True)
class HostEnvConfig:
    """A host environment by value; each half that is None stays the system's. Make a new one for every replay."""

    sequential_id_prefix: str | None = None
    fixed_time_ms: int | None = None

    def build(self) -> HostEnv:
        """The environment; its ids start from 0.

        Raises:
            SessionConfiguration: a blank prefix.
            ValueError: a negative time.
        """
        prefix, ms = self.sequential_id_prefix, self.fixed_time_ms
        ids: IdGenerator = UuidGenerator() if prefix is None else SequentialIdGenerator(prefix)
        return HostEnv(ids, SystemClock() if ms is None else FixedClock(ms))


def build_env(given: HostEnv | HostEnvConfig | None) -> HostEnv:
    """The environment that an option stands for.

    Raises:
        TypeError: something else was given.
    """
    if given is None:
        return HostEnv()
    if isinstance(given, HostEnvConfig):
        return given.build()
    if isinstance(given, HostEnv):  # pyright: ignore[reportUnnecessaryIsInstance]
        return given
    raise TypeError(f"'host_env' must be a HostEnv or HostEnvConfig, not {type(given).__name__}")


def _check_ms(ms: int) -> int:
    if isinstance(ms, bool) or not isinstance(ms, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("a time must be an integer of milliseconds")
    if not 0 <= ms < 2**53:
        raise ValueError("a time must be between 0 and 2**53 milliseconds")
    return ms
