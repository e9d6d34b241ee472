"""Runs that were started under a caller's id and go on by themselves (§7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..results import SendResult
from ..runs import Run


@dataclass(frozen=True, slots=True)
class SpawnedRun:
    """A run under a caller's id. ``replayed``: it was there before, and nothing was started.

    ``run`` is how it stood when it was spawned; :meth:`wait` gives its outcome.
    """

    run: Run
    replayed: bool
    wait: Callable[[], SendResult]
    """Wait for the end. Raises the run's error, or RunInterrupted if it was interrupted."""


@dataclass(frozen=True, slots=True)
class AsyncSpawnedRun:
    """See :class:`SpawnedRun` (``run``, ``replayed``); ``wait`` is awaited."""

    run: Run
    replayed: bool
    wait: Callable[[], Awaitable[SendResult]]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What ``agent.recover`` came to for one interrupted run, named by ``session_id`` and ``run_id``: a ``result``, or
    the ``error`` that stopped it."""

    session_id: str
    run_id: str
    result: SendResult | None = None
    error: Exception | None = None
