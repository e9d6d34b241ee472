"""Several processes that work at one file and are told, line by line, when to begin."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from ..nursery import start
from .kit import PATIENCE_S, environment

PRELUDE = """
import json, os, random, signal, sys, threading, time
from thence import *
from thence.chat import RawCall, Reply

db, me, args = sys.argv[1], sys.argv[2], sys.argv[3:]

def say(**words):
    print(json.dumps(words), flush=True)

def hear():
    return sys.stdin.readline().strip()
"""


class Worker:
    """One process. Its lines are JSON objects, read as they come."""

    def __init__(self, code: str, db: Path, name: str, *args: object) -> None:
        self.name = name
        self.process = start(
            ["-c", PRELUDE + code, str(db), name, *map(str, args)],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=body, daemon=True) for body in (self._listen, self._complain)]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line)
        self._said.put(None)

    def _complain(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def hear(self, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next thing it says."""
        line = self._said.get(timeout=timeout_s)
        assert line is not None, f"{self.name} ended ({self.process.wait()}): {''.join(self._errors)[-2000:]}"
        said: dict[str, Any] = json.loads(line)
        return said

    def tell(self, word: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def kill(self, sign: int = signal.SIGKILL) -> None:
        self.process.send_signal(sign)
        if sign == signal.SIGKILL:
            # gone when this returns: its locks last until then
            self.process.wait(PATIENCE_S)

    def end(self) -> None:
        """Kill it if it lives, and leave nothing of it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
