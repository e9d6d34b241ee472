"""What the process tests share: child processes that talk, plain `sqlite3` eyes, and a check of the whole file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..nursery import start

ENGINE = Path(__file__).resolve().parents[2] / "engine"

PRELUDE = """
import asyncio, json, os, signal, sys, threading, time
from thence import *
from thence.chat import Reply, TextDelta
from thence.testing import ScriptedModel, call, reply

db = sys.argv[1]
args = sys.argv[2:]

def say(*words):
    # in one piece: threads say things at the same time
    sys.stdout.write(" ".join(map(str, words)) + chr(10))
    sys.stdout.flush()

def hear():
    return sys.stdin.readline().strip()

def options(**given):
    return SessionOptions(**given)
"""

GENEROUS_S = 45.0
"""How long a test waits for something that takes milliseconds. Never a promise, only the end of patience."""


class Child:
    """A Python process that runs ``PRELUDE`` and some code. Its lines are read as they come. ``how``: see `start`."""

    def __init__(self, code: str, args: Sequence[object], *, prelude: str = PRELUDE, **how: Any) -> None:
        self.process = start(
            ["-c", prelude + code, *map(str, args)],
            **how,
            env={**os.environ, "PYTHONPATH": str(ENGINE), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # a group of its own, so that forked children can be cleaned away with it
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def errors(self) -> str:
        return "".join(self._errors)

    def line(self, timeout_s: float = GENEROUS_S) -> str:
        """The next line that it says; what it complained about when it says nothing more."""
        try:
            said = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise AssertionError(f"the child said nothing for {timeout_s} s; stderr: {self.errors}") from None
        if said is None:
            self.process.wait(GENEROUS_S)
            raise AssertionError(f"the child ended ({self.process.returncode}); stderr: {self.errors}")
        return said

    def expect(self, word: str, timeout_s: float = GENEROUS_S) -> None:
        said = self.line(timeout_s)
        assert said == word, (said, self.errors)

    def tell(self, word: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def kill(self, sign: int = signal.SIGKILL) -> None:
        self.process.send_signal(sign)
        if sign == signal.SIGKILL:
            # gone when this returns: its locks last until then
            self.process.wait(GENEROUS_S)

    def finish(self, code: int | None = 0, timeout_s: float = GENEROUS_S) -> list[str]:
        """Wait for its end; the lines that were not read yet."""
        assert self.process.stdin is not None
        self.process.wait(timeout_s)
        for thread in self._threads:
            thread.join(5)
        if code is not None:
            assert self.process.returncode == code, (self.process.returncode, self.errors)
        rest: list[str] = []
        while not self._lines.empty():
            said = self._lines.get()
            if said is not None:
                rest.append(said)
        return rest

    def clean_up(self) -> None:
        # none of the group may be left
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(GENEROUS_S)
        for thread in self._threads:
            thread.join(5)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def wait_for(look: Callable[[], Any], timeout_s: float = GENEROUS_S, pause_s: float = 0.01) -> Any:
    """What ``look`` returns, once that is something."""
    until = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < until, f"waited {timeout_s} s in vain"
        time.sleep(pause_s)


class Plain:
    """A program that knows SQLite and nothing of thence; it writes as schema/README.md asks it to."""

    def __init__(self, path: Path | str) -> None:
        self.db = sqlite3.connect(f"file:{path}?mode=rw", uri=True, isolation_level=None, timeout=30)
        self.db.execute("PRAGMA wal_autocheckpoint=0")

    def rows(self, sql: str, *values: object) -> list[Any]:
        return self.db.execute(sql, values).fetchall()

    def one(self, sql: str, *values: object) -> Any:
        found = self.db.execute(sql, values).fetchone()
        return None if found is None else found[0]

    def say(self, *, verb: str = "INSERT", **columns: object) -> None:
        """One event through the door."""
        names = ", ".join(columns)
        marks = ", ".join("?" * len(columns))
        self.db.execute(f"{verb} INTO event_in({names}) VALUES({marks})", list(columns.values()))

    def refused(self, sql: str, *values: object) -> str:
        """The refusal of a statement that must not succeed."""
        try:
            self.db.execute(sql, values)
        except sqlite3.Error as error:
            return str(error)
        raise AssertionError(f"not refused: {sql}")

    def close(self) -> None:
        self.db.close()


def verify(path: Path | str) -> dict[str, int]:
    """Integrity, every chain and every head, as a stranger checks them; facts by session."""
    plain = Plain(path)
    try:
        assert plain.one("PRAGMA integrity_check") == "ok"
        found: dict[str, int] = {}
        for session_id, facts, head in plain.rows("SELECT session_id, facts, head_hash FROM sessions"):
            seq, digest = 0, bytes(32)
            rows = plain.rows(
                "SELECT seq, kind, key, cause, payload, hash FROM facts WHERE session_id = ? ORDER BY seq", session_id
            )
            for *fact, stored in rows:
                text = json.dumps(fact, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
                seq, digest = seq + 1, hashlib.sha256(digest + text.encode()).digest()
                assert (fact[0], stored) == (seq, digest.hex())
            assert (facts, head) == (seq, digest.hex())
            found[session_id] = seq
        return found
    finally:
        plain.close()


def pairs_ok(history: Sequence[Any]) -> bool:
    """Whether every call is followed by exactly its results, in call order, before anything else is said."""
    waiting: list[str] = []
    for message in history:
        if message.role == "tool":
            if not waiting or waiting.pop(0) != message.call_key:
                return False
            continue
        if waiting:
            return False
        if message.role == "assistant":
            waiting = [call.key for call in message.calls]
    return not waiting


def has_strace() -> bool:
    """Whether strace is there and may trace."""
    strace = shutil.which("strace")
    if strace is None:
        return False
    return subprocess.run([strace, "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0
