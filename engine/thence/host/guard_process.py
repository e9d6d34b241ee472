"""A budget guard in a process of its own, for guards that may hang or hold the interpreter (§6).

The process is started when the guard is installed, killed when one of its calls passes the time limit, and started anew
for the next one. Questions and answers are JSON lines over pipes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import IO, Any

from .. import budget
from ..budget import GuardDecision
from ..errors import SessionConfiguration

CHILD = Path(__file__).with_name("guard_child.py")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class ProcessGuard:
    """A guard by its import name, ``package.module:attribute``; a class or a factory is called without arguments."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise SessionConfiguration(
                "budget_guard", f"must be 'package.module:attribute' for isolation 'process', not {name!r}"
            )
        self.name = name
        self._asking = threading.Lock()
        self._starting = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._number = 0
        self._closed = False
        self._end: Any = None

    def start(self) -> None:
        """Have the process ready before it is asked. A failure is told when it is."""
        try:
            self._living()
        except (OSError, ValueError):
            return

    def decide(self, method: str, session_id: str, argument: object, deadline: float) -> GuardDecision:
        """Ask, and read the answer. Called on a thread that may wait; :meth:`kill` ends the wait."""
        with self._asking:
            left = deadline - time.monotonic()
            if left <= 0:
                return budget.unavailable(method, "its process was still busy with an earlier call")
            self._number += 1
            question = {
                "id": self._number,
                "method": method,
                "session_id": session_id,
                "argument": argument,
                "limit_s": left,
            }
            try:
                answer = self._exchange(question)
            except (OSError, ValueError) as error:
                self.kill()
                self.start()  # so that it is ready for the next one
                return budget.unavailable(method, f"its process cannot be asked: {error}")
        if "error" in answer:
            return budget.failed(method, str(answer["error"]))
        return budget.read_decision(method, answer.get("value"))

    def _exchange(self, question: dict[str, Any]) -> dict[str, Any]:
        child = self._living()
        into, out = _pipes(child)
        into.write(json.dumps(question) + "\n")
        into.flush()
        line = out.readline()
        if not line:
            raise ValueError(f"it ended ({child.wait()})")
        answer: Any = json.loads(line)
        if not isinstance(answer, dict) or answer.get("id") != question["id"]:  # pyright: ignore[reportUnknownMemberType]
            raise ValueError("it answers another question")
        return answer  # pyright: ignore[reportUnknownVariableType]

    def _living(self) -> subprocess.Popen[str]:
        with self._starting:
            child = self._child
            if child is not None and child.poll() is None:
                return child
            if self._closed:
                raise ValueError("it is closed")
            if self._end is not None:
                self._end()
            # -P: nothing of ours may stand in for a module of the guard's
            child = subprocess.Popen(
                [sys.executable, "-P", str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            self._child = child
            self._end = weakref.finalize(self, _bury, child)
            into, _ = _pipes(child)
            into.write(json.dumps({"guard": self.name, "path": sys.path}) + "\n")
            into.flush()
            return child

    def kill(self) -> None:
        """End the process, and the wait of whoever asks it; the next question starts another."""
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the process for good."""
        self._closed = True
        if self._end is not None:
            self._end()


def isolated(guard: object | None, isolation: str) -> object | None:
    """The guard as it is to be asked: itself, or in a process of its own.

    Raises:
        SessionConfiguration: isolation ``process`` for something that is not an import name, or the other way round; or
            an object that has none of a guard's methods.
    """
    if isolation != "process":
        if isinstance(guard, str):
            raise SessionConfiguration("budget_guard", "is an import name: set budget_guard_isolation='process' for it")
        if guard is not None:
            budget.check_guard(guard)
        return guard
    if guard is None:
        return None
    if not isinstance(guard, str):
        raise SessionConfiguration(
            "budget_guard", f"must be 'package.module:attribute' for isolation 'process', not a {type(guard).__name__}"
        )
    return ProcessGuard(guard)


def _pipes(child: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if child.stdin is None or child.stdout is None:
        raise ValueError("it has no pipes")
    return child.stdin, child.stdout


def _bury(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except OSError:  # what was still to be written goes nowhere
            continue
