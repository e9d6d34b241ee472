"""Tools that change a workspace, or only say so; and the digest of a turn's changes, made here anew (§5)."""

from __future__ import annotations

import hashlib
import inspect
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thence import GateClosed, ToolContext, ToolOutput, tool
from thence.testing import call, reply

from ..kit import PATIENCE_S, Both, canonical, in_thread


@tool(workspace=True)
def write(text: str, context: ToolContext) -> str:
    """Write the one file of the workspace."""
    (context.workspace / "file").write_text(text)
    return "written"


@tool(effect="read", workspace=True)
def look() -> str:
    return "seen"


@tool
def say(text: str) -> str:
    return text


@tool
def report(paths: list[str], ok: bool = True) -> ToolOutput:
    """A tool of another kind that reports what it changed."""
    return ToolOutput("told", ok=ok, changed_paths=paths)


@tool(effect="idempotent", workspace=True)
def fail(n: int) -> str:
    raise RuntimeError("no")


TOOLS: list[Any] = [write, look, say, report, fail]


def writes(*texts: str) -> list[Any]:
    """A script that writes each text in a round of its own, and then says that it is done."""
    return [*(reply(calls=[call("write", {"text": text})]) for text in texts), reply("done")]


def signature(name: str, arguments: Any) -> str:
    return f"{name}:{hashlib.sha256(canonical(arguments).encode()).hexdigest()}"


def digest(*changes: tuple[str, Any, Sequence[str]]) -> str:
    """Of (tool, arguments, changed paths), one after the other."""
    found = ""
    for name, arguments, paths in changes:
        line = canonical([found, signature(name, arguments), sorted(paths)])
        found = hashlib.sha256(line.encode()).hexdigest()
    return found


def written(*texts: str) -> str:
    """Digest of a turn that wrote these texts."""
    return digest(*(("write", {"text": text}, ()) for text in texts))


async def closed(doing: Any) -> GateClosed:
    """The gate's error, which this must raise."""
    try:
        await doing
    except GateClosed as error:
        assert (error.code, error.resumable) == ("COMPLETION_GATE", True)
        return error
    raise AssertionError("the gate was open")


async def last_run(session: Both) -> Any:
    return (await session.runs())[-1]


async def let_go(session: Both) -> Any:
    """The session's last run, once nobody owns the session any more."""
    end = time.monotonic() + PATIENCE_S
    while (run := await last_run(session)).owner is not None:
        assert time.monotonic() < end, "somebody still owns the session"
    return run


async def outcome_of(spawned: Any) -> Any:
    """What a spawned run of either face came to."""
    waited = await in_thread(spawned.wait)
    return await waited if inspect.isawaitable(waited) else waited


def is_gone(pid: int) -> bool:
    """Whether no process of this pid runs (one that nobody has reaped yet does not)."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_gone(pid):
        assert time.monotonic() < end, f"{pid} still runs"
        time.sleep(0.01)


def read_pid(path: Path) -> int:
    """The number that a command wrote, once it is there."""
    end = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < end, f"nothing in {path}"
        time.sleep(0.01)
    return int(path.read_text())
