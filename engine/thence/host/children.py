"""Commands as child processes, each in a process group of its own, with bounded output (§5).

A command has no terminal and no input. It is killed as a group: when its time is over, when nobody waits for it any
more, and when it leaves something running behind.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..verification import Command

MAX_OUTPUT_BYTES = 16 * 1024
"""How much of a command's output is kept: half of it from the beginning, half from the end."""

_PIECE = 65_536
_LAST_WORDS_S = 1.0

_alive: set[Child] = set()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended: negative for the signal that ended it. ``output`` is what it wrote, both streams as one."""

    code: int
    output: str


class Output:
    """Head and tail of what is written to it; the rest is counted only."""

    def __init__(self, limit: int = MAX_OUTPUT_BYTES) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dropped = 0
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Take some more."""
        with self._lock:
            room = self._half - len(self._head)
            self._head += data[:room]
            if rest := data[room:]:
                self._tail.append(rest)
                self._tail_bytes += len(rest)
            while self._tail_bytes > self._half:
                first = self._tail.popleft()
                too_many = min(len(first), self._tail_bytes - self._half)
                self._tail_bytes -= too_many
                self._dropped += too_many
                if too_many < len(first):
                    self._tail.appendleft(first[too_many:])

    def text(self) -> str:
        """What is kept, as text; where something is missing a line says how much."""
        with self._lock:
            head, tail = bytes(self._head), b"".join(self._tail)
            if not self._dropped:
                return (head + tail).decode("utf-8", "replace")
            marker = f"\n[... {self._dropped} bytes not kept ...]\n"
            return head.decode("utf-8", "replace") + marker + tail.decode("utf-8", "replace")


class Child:
    """One command. :meth:`run` blocks on a thread of its own; :meth:`kill` may be called from any, at any time."""

    def __init__(self, command: Command, folder: Path) -> None:
        self._command, self._folder = command, folder
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self.output = Output()

    def run(self) -> Exit:
        """Run the command to its end, whatever that is.

        Raises:
            OSError: it could not be started.
        """
        # Known before it starts: an interpreter that exits meanwhile waits for the start, and takes it along.
        with _lock:
            _alive.add(self)
        try:
            return self._run()
        finally:
            with _lock:
                _alive.discard(self)

    def _run(self) -> Exit:
        with self._lock:
            if self._killed:
                return Exit(-signal.SIGTERM, "")
            process = self._process = _start(self._command, self._folder)
        reader = threading.Thread(target=self._read, args=(process.stdout,), name="thence-verify", daemon=True)
        reader.start()
        code = process.wait()
        # Whatever it left behind would hold the pipe open, and go on changing what was verified.
        self.kill()
        with self._lock:
            self._process = None
        # Somebody who left the group may still hold the pipe: what it says is not waited for.
        reader.join(_LAST_WORDS_S)
        return Exit(code, self.output.text())

    def kill(self) -> None:
        """End the command and all that it started in its group; one that has not started never will."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                _kill_group(self._process)

    def _read(self, pipe: IO[bytes] | None) -> None:
        if pipe is None:
            return
        with pipe:
            while data := os.read(pipe.fileno(), _PIECE):
                self.output.write(data)


def _start(command: Command, folder: Path) -> subprocess.Popen[bytes]:
    if isinstance(command, str):
        command = ["cmd", "/c", command] if sys.platform == "win32" else ["/bin/sh", "-c", command]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        subprocess.run(
            ["taskkill", "/F", "/T", "/PID", str(process.pid)],  # noqa: S607 - where it is depends on the machine
            capture_output=True,
            check=False,
        )
        return
    # Nobody is left in the group: that is what was wanted. (macOS says so with EPERM for one that is a zombie.)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _kill_all() -> None:
    """An interpreter that exits takes its commands along, also when no run is left to be told."""
    with _lock:
        left = list(_alive)
    for child in left:
        child.kill()


atexit.register(_kill_all)
