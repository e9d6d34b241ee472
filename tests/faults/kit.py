"""What the fault tests share: compiled shims, child processes, and a judge that knows only SQLite and the contract."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ..nursery import start

HERE = Path(__file__).resolve().parent
ENGINE = HERE.parents[1] / "engine"
PATIENCE_S = 60.0
"""How long a test waits for a child. Never asserted: only a broken engine ever takes so long."""


def compiled(source: str, folder: Path) -> Path:
    """A shared object to preload; skips the test where nothing compiles it or the loader would ignore it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler and LD_PRELOAD")
    made = folder / f"{source}.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(HERE / source), "-ldl", "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"{source} does not compile here: {built.stderr[:200]}")
    return made


def needs_strace() -> str:
    """The path of a strace that may trace; skips the test where there is none."""
    strace = shutil.which("strace")
    probe = [str(strace), "-o", "/dev/null", "true"]
    if strace is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("needs strace, and the right to trace")
    return strace


def environment(**more: str) -> dict[str, str]:
    """What a child starts with."""
    return {**os.environ, "PYTHONPATH": str(ENGINE), "PYTHONUNBUFFERED": "1", **more}


def run_child(
    code: str, *args: object, under: Sequence[str] = (), code_of: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python process to its end."""
    program = [str(code_of)] if code_of else ["-c", code]
    words = [*program, *map(str, args)]
    process = start(words, under=under, env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    return subprocess.CompletedProcess(words, process.wait(), out, errors)


def chain(previous: bytes, fact: Sequence[Any]) -> bytes:
    """The hash of (seq, kind, key, cause, payload text) after ``previous``, as schema/README.md defines it."""
    text = json.dumps(list(fact), ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(previous + text.encode()).digest()


class Judge:
    """Reads a file nobody else of this process has open, with plain `sqlite3`, and finds what is wrong with it."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(f"file:{path}?mode=rw", uri=True, isolation_level=None, timeout=30)
        self._db.execute("PRAGMA wal_autocheckpoint=0")

    def rows(self, sql: str, values: Any = ()) -> list[Any]:
        """The rows of a query."""
        return self._db.execute(sql, values).fetchall()

    def close(self) -> None:
        """Close the file; the last one to do so folds the WAL in."""
        self._db.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def complaints(self) -> list[str]:
        """Integrity, every chain of every session, every head. Empty when all is well."""
        found = [str(row[0]) for row in self.rows("PRAGMA integrity_check(5)") if row[0] != "ok"]
        for session_id, facts, head in self.rows("SELECT session_id, facts, head_hash FROM sessions"):
            seq, digest = 0, bytes(32)
            for *fact, stored in self.rows(
                "SELECT seq, kind, key, cause, payload, hash FROM facts WHERE session_id = ? ORDER BY seq",
                (session_id,),
            ):
                seq, digest = seq + 1, chain(digest, fact)
                if (fact[0], stored) != (seq, digest.hex()):
                    found.append(f"{session_id}: the chain breaks at seq {fact[0]}")
                    break
            else:
                if (facts, head) != (seq, digest.hex()):
                    found.append(f"{session_id}: the head says {facts} facts, there are {seq}")
        return found

    def settled(self) -> set[tuple[str, str]]:
        """(session, call key) of every call that has a result, as a fact or landed."""
        return {
            *map(tuple, self.rows("SELECT session_id, key FROM facts WHERE kind IN ('tool.result', 'budget.denied')")),
            *map(tuple, self.rows("SELECT session_id, call_key FROM calls_in_flight WHERE state = 'landed'")),
        }

    def started(self) -> set[tuple[str, str]]:
        """(session, call key) of every call that has started and is not a fact yet."""
        return {*map(tuple, self.rows("SELECT session_id, call_key FROM calls_in_flight"))}
