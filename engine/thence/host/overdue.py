"""Plain tools that outlived their time limit and still hold their thread, by the turn that called them (§5).

One list for the process: a run that parks leaves its world behind, and whoever goes on with its turn here, be it for
another agent, must not run a call beside a tool that is still at work.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TypeAlias

from .jobs import Job

TurnPlace: TypeAlias = tuple[str, str, str]
"""Which turn of this process: the file, the session's id, the turn's key."""


@dataclass(frozen=True, slots=True)
class Late:
    """A call that nobody waits for any more, and the name of its tool."""

    job: Job
    tool: str


class OverdueTools:
    """Which tools are still running although their call has its result. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_turn: dict[TurnPlace, list[Late]] = {}

    def add(self, turn: TurnPlace, late: Late) -> None:
        """Its time was over; it goes on."""
        with self._lock:
            self._by_turn.setdefault(turn, []).append(late)
            self._forget_finished()

    def of(self, turn: TurnPlace) -> list[Late]:
        """Those that this turn called and that still run."""
        if not self._by_turn:
            return []  # nearly always
        with self._lock:
            self._forget_finished()
            return list(self._by_turn.get(turn, ()))

    def _forget_finished(self) -> None:
        for turn, those in list(self._by_turn.items()):
            left = [late for late in those if not late.job.finished]
            if left:
                self._by_turn[turn] = left
            else:
                del self._by_turn[turn]


OVERDUE = OverdueTools()
