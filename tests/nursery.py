"""Python processes that start in milliseconds.

To start an interpreter and import the package takes a third of a second of work, with an SDK a whole one, and these
tests start more than a thousand. A nursery has imported everything once and forks a child for each. Such a child is a
real process in all that is tested here: its own pid, descriptors, locks, connections, signals and environment, and it
leaves through the interpreter's own end. It differs in that its modules are imported already and that children of one
nursery share a hash seed; what is about just that, or runs under another program, starts an interpreter of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
ENGINE = HERE.parent / "engine"

AT_START = ("COVERAGE_", "GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "PYTHON")
"""The variables, by their beginnings, that decide things when an interpreter starts."""

PER_CHILD = {"PYTHONPATH", "PYTHONUNBUFFERED"}

File = int | IO[str] | None


class Forked:
    """A child of the nursery; what the tests use of `subprocess.Popen`, in text mode."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | str | None = None,
        stdin: File = None,
        stdout: File = None,
        stderr: File = None,
        start_new_session: bool = False,
    ) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        self._lock = threading.Lock()
        theirs: list[int] = []
        self._lent: list[int] = []
        self.stdin = self._pipe(stdin, theirs, 0)
        self.stdout = self._pipe(stdout, theirs, 1)
        self.stderr = self._pipe(stderr, theirs, 2)
        order = {"words": self.args, "env": dict(env), "cwd": str(cwd or Path.cwd())}
        self._line = _order({**order, "start_new_session": start_new_session}, theirs)
        for descriptor in self._lent:
            os.close(descriptor)
        (self.pid,) = struct.unpack("!i", self._line.recv(4, socket.MSG_WAITALL))

    def _pipe(self, given: File, theirs: list[int], number: int) -> IO[str] | None:
        if given == subprocess.PIPE:
            read, write = os.pipe()
            self._lent.append(read if number == 0 else write)
            theirs.append(self._lent[-1])
            return open(write, "w") if number == 0 else open(read)
        if given == subprocess.DEVNULL:
            self._lent.append(os.open(os.devnull, os.O_RDWR))
            theirs.append(self._lent[-1])
        elif given == subprocess.STDOUT:
            theirs.append(theirs[1])
        else:
            theirs.append(number if given is None else given if isinstance(given, int) else given.fileno())
        return None

    def _ended(self, timeout_s: float | None) -> bool:
        with self._lock:
            if self.returncode is None and select.select([self._line], [], [], timeout_s)[0]:
                (status,) = struct.unpack("!i", self._line.recv(4, socket.MSG_WAITALL))
                self.returncode = os.waitstatus_to_exitcode(status)
                self._line.close()
            return self.returncode is not None

    def poll(self) -> int | None:
        self._ended(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """What it said until its end; a text in place of None for what was not piped."""
        end = None if timeout is None else time.monotonic() + timeout
        said = ["", ""]

        def read(number: int, stream: IO[str] | None) -> None:
            if stream is not None:
                with stream:
                    said[number] = stream.read()

        streams = (self.stdout, self.stderr)
        threads = [threading.Thread(target=read, args=one, daemon=True) for one in enumerate(streams)]
        for thread in threads:
            thread.start()
        if self.stdin is not None:
            # whoever has ended reads no more
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(input or "")
        for thread in threads:
            thread.join(None if end is None else max(end - time.monotonic(), 0))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if end is None else max(end - time.monotonic(), 0))
        return said[0], said[1]

    def send_signal(self, sign: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sign)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = subprocess.Popen[str] | Forked


def start(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    under: Sequence[str] = (),
    cwd: Path | str | None = None,
    stdin: File = None,
    stdout: File = None,
    stderr: File = None,
    start_new_session: bool = False,
    own: bool = False,
) -> Process:
    """Python with these words of a command line: a child of the nursery wherever nothing tells it from another.

    ``under`` is a command that starts it. With that, or if ``own``, it is always an interpreter of its own: for what
    is about an interpreter's start or end.
    """
    if not (own or under) and _may_be_forked(env):
        return Forked(
            words, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=start_new_session
        )
    return subprocess.Popen(
        [*under, sys.executable, *words],
        env=env,
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=True,
        start_new_session=start_new_session,
        # a test run in the background ignores SIGINT and would pass that on
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _may_be_forked(env: Mapping[str, str]) -> bool:
    """Whether an interpreter of this environment would start like the nursery did."""
    paths = set(env.get("PYTHONPATH", "").split(os.pathsep))
    if not hasattr(os, "fork") or not paths <= {str(ENGINE), str(HERE.parent)}:
        return False
    names = {name for name in {*env, *os.environ} if name.startswith(AT_START)} - PER_CHILD
    return not any(name.startswith("COVERAGE_") for name in names) and all(
        env.get(name) == _nursery_env().get(name) for name in names
    )


@cache
def _nursery_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ENGINE)}


@cache
def _nursery() -> tuple[socket.socket, threading.Lock]:
    """The nursery of this process, started at its first order."""
    ours, its = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, str(HERE / "nursery_program.py"), str(its.fileno())],
        env=_nursery_env(),
        pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        # no Ctrl-C of a terminal reaches it, and none is inherited as ignored
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    its.close()

    def end() -> None:
        ours.close()
        process.wait(30)

    atexit.register(end)
    return ours, threading.Lock()


def _order(order: dict[str, object], descriptors: list[int]) -> socket.socket:
    """Give an order; returns the line on which the nursery tells the child's pid and, in time, its status."""
    control, lock = _nursery()
    ours, theirs = socket.socketpair()
    with lock:
        socket.send_fds(control, [b"x"], [*descriptors, theirs.fileno()])
        ours.sendall(json.dumps(order).encode() + b"\n")
    theirs.close()
    return ours
