"""What the bad-input tests share: both faces behind one way to call, and photographs of files."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thence import Agent, AsyncAgent

FACES = ["sync", "async"]
NAN, INF = float("nan"), float("inf")
LONE = "a\ud800b"
"""A text that has no UTF-8."""


class Face:
    """One face of the library: ``do`` finishes whatever a call gave back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._runner = asyncio.Runner() if name == "async" else None
        self._opened: list[Agent | AsyncAgent] = []

    def agent(self, *args: Any, **kwargs: Any) -> Any:
        made = AsyncAgent(*args, **kwargs) if self._runner is not None else Agent(*args, **kwargs)
        self._opened.append(made)
        return made

    def do(self, call: Callable[[], Any]) -> Any:
        """The result of ``call``, awaited or iterated to its end."""
        if self._runner is None:
            return finish(call())
        return self._runner.run(afinish(call))

    def close(self) -> None:
        for agent in self._opened:
            self.do(agent.close)
        self._opened.clear()

    def leave(self) -> None:
        self.close()
        if self._runner is not None:
            self._runner.close()


def finish(value: Any) -> Any:
    return list(value) if hasattr(value, "__next__") else value


async def afinish(call: Callable[[], Any]) -> Any:
    value = call()
    if hasattr(value, "__anext__"):
        return [item async for item in value]
    return await value if inspect.isawaitable(value) else value


def photograph(path: Path) -> str | None:
    """SHA-256 of a closed file, or None when it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def photograph_folder(folder: Path) -> dict[str, str]:
    return {
        entry.name: (photograph(entry) or "") if entry.is_file() else "special" for entry in sorted(folder.iterdir())
    }


def nested(depth: int) -> Any:
    """Lists in lists, ``depth`` deep."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value
