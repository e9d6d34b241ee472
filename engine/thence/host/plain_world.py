"""The world of short flows: a clock, and nobody who stops, guards or watches them."""

from __future__ import annotations

from typing import Any

from ..effects import Commit, Flow, Stopped
from .env import HostEnv


class PlainWorld:
    """The world of flows that run no turn: a clock and nothing else."""

    def __init__(self, env: HostEnv) -> None:
        self._env = env

    def interpret(self, effect: Any) -> Flow[Any]:
        """No other effect is known here."""
        raise TypeError(f"{type(effect).__name__} belongs to a turn")

    def committed(self, effect: Commit) -> None:
        """Nobody watches."""

    def now_ms(self) -> int:
        """The clock."""
        return self._env.now_ms()

    def is_steered(self) -> bool:
        """Nobody is spoken to."""
        return False

    def inbox_due(self) -> bool:
        """Nobody's inbox is looked into."""
        return False

    def stop_now(self) -> Stopped | None:
        """Short flows are not stopped."""
        return None

    def cancelled(self) -> bool:
        """Short flows are cancelled as any other call is."""
        return False
