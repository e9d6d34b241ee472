"""Ids and time: the only two sources of difference between equal runs (§11).

Every stored id and time comes through a :class:`HostEnv`. Equal inputs under equal environments give equal facts, byte
for byte; with ``max_parallel_tools=1`` also an equal ``iterdump()`` of the closed file, though not equal pages of it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import SessionConfiguration
from ..identity import check_id

MAX_MS = 2**53


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
    """Where ids and times come from. Default: random ids and the machine's clock.

    What a host's own objects give is checked when it is used: an id must be a string that can be one, a time an integer
    of milliseconds; anything else is a ``SessionConfiguration`` that names ``id_generator`` or ``clock``.

    Raises:
        TypeError: an object without the methods.
    """

    id_generator: IdGenerator = field(default_factory=UuidGenerator)
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        for name, methods in (("id_generator", ("next_id", "lineage")), ("clock", ("now_ms",))):
            given = getattr(self, name)
            if isinstance(given, type) or not all(callable(getattr(given, method, None)) for method in methods):
                what = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
                raise TypeError(f"'{name}' must be an object with {' and '.join(methods)}, not {what}")

    def new_id(self) -> str:
        """The next id. Raises SessionConfiguration for what cannot be one."""
        return _id(self.id_generator.next_id())

    def lineage(self) -> str:
        """The name of a new file. Raises SessionConfiguration for what cannot be one."""
        return _id(self.id_generator.lineage())

    def now_ms(self) -> int:
        """The time. Raises SessionConfiguration for what is none."""
        ms: object = self.clock.now_ms()
        if type(ms) is not int:
            raise SessionConfiguration("clock", f"must give integers of milliseconds, not a {type(ms).__name__}")
        if not 0 <= ms < MAX_MS:
            raise SessionConfiguration("clock", "must give milliseconds between 0 and 2**53")
        return ms


def _id(value: object) -> str:
    if not isinstance(value, str):
        raise SessionConfiguration("id_generator", f"must give strings, not a {type(value).__name__}")
    return check_id(value, "id_generator")


def distinct(draw: Callable[[], str]) -> Iterator[str]:
    """Ids as they are drawn, for whoever looks for one that the file does not hold.

    Raises:
        SessionConfiguration: the generator gives one a second time: it would go round for ever.
    """
    seen: set[str] = set()
    while (drawn := draw()) not in seen:
        seen.add(drawn)
        yield drawn
    raise SessionConfiguration("id_generator", f"repeats itself, and the file already holds '{drawn}'")


@dataclass(frozen=True, slots=True)
class HostEnvConfig:
    """A host environment by value; each half that is None stays the system's. Make a new one for every replay.

    Attributes:
        sequential_id_prefix: ids are ``<prefix>-0``, ``<prefix>-1``, ...
        fixed_time_ms: the time stands still there, in milliseconds since the epoch.
    """

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
    if not 0 <= ms < MAX_MS:
        raise ValueError("a time must be between 0 and 2**53 milliseconds")
    return ms
