"""What is synced, and what is not: before an effect, before an acknowledgement, and nothing else (§5)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .kit import needs_strace, run_child

LIFE = """
import asyncio, inspect, os, sys
from thence import *
from thence.testing import ScriptedModel, call, reply

db, face, durability, marks = sys.argv[1:]
descriptor = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
mark = lambda name: os.write(descriptor, f"<{name}>".encode())

@tool(effect="read")
def peek(n: int) -> str:
    "Look."
    return "seen"

@tool(effect="idempotent")
def poke(n: int) -> str:
    "Change."
    mark("effect")
    return "done"

def asked(name, *calls):
    def answer(request):
        mark(name)
        return reply("" if calls else "done", [call(*one) for one in calls])
    return answer

script = [
    asked("before first model"), reply("warm"),
    asked("asked 1", ("peek", {"n": 1})),
    asked("asked 2", ("peek", {"n": 2}), ("peek", {"n": 3})),
    asked("asked 3", ("poke", {"n": 1})),
    asked("asked 4", ("poke", {"n": 2}), ("poke", {"n": 3})),
    asked("asked 5"),
    reply("", [call("poke", {"n": 9})]),
]

async def now(value):
    return await value if inspect.isawaitable(value) else value

async def main():
    make = Agent if face == "sync" else AsyncAgent
    agent = make(db, model=ScriptedModel(script), tools=[peek, poke], durability=durability)
    warm = await now(agent.session("/nowhere", SessionOptions(session_id="warm")))
    await now(warm.send("warm up")); await now(warm.send("warm up again"))
    mark("begin")
    session = await now(agent.session("/nowhere", SessionOptions(session_id="s")))
    mark("session")
    await now(session.send("go"))
    mark("sent")
    await now(session.emit({"type": "note", "payload": {}}))
    mark("emit")
    await now(session.set_retention({"max_trace_events": 7}))
    mark("retention")
    await now(session.history()); await now(session.facts()); await now(session.runs()); await now(session.events())
    mark("reads")
    # a run of somebody else's, cancelled through its inbox
    os.close(os.open(marks, os.O_RDONLY))
    spawned = await now(session.spawn_run_with_id("r", "go on"))
    mark("spawned")
    await now(spawned.wait())
    mark("end")
    await now(agent.close())

asyncio.run(main())
"""

CANCEL = """
import os, sys, threading
from thence import *
from thence.testing import ScriptedModel, call, reply

db, durability, marks = sys.argv[1:]
descriptor = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
mark = lambda name: os.write(descriptor, f"<{name}>".encode())
waiting, go = threading.Event(), threading.Event()

def answer(request):
    waiting.set()
    go.wait(30)
    return reply("done")

with Agent(db, model=ScriptedModel([reply("warm"), answer])) as owner, Agent(db, durability=durability) as other:
    session = owner.session("/nowhere", SessionOptions(session_id="s"))
    session.send("warm up")
    outside = other.resume_session("s")
    outside.emit({"type": "warm", "payload": {}})
    spawned = session.spawn_run_with_id("r", "go on")
    waiting.wait(30)
    # the owner looks into its inbox by itself: hold its writer, or its syncs would be counted as ours
    with owner._core.store._writer.lock:
        mark("begin")
        assert outside.cancel()
        mark("cancel")
    go.set()
"""


def count_syncs(code: str, tmp_path: Path, *args: str) -> dict[str, int]:
    """Syncs between each mark and the one before it, by the mark they led to."""
    strace = needs_strace()
    log, db = tmp_path / "trace", tmp_path / "data" / "a.db"
    db.parent.mkdir()
    under = [strace, "-f", "-y", "-s", "100", "-o", str(log), "-e", "trace=fsync,fdatasync,write"]
    done = run_child(code, db, *args, tmp_path / "marks", under=under)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = {}
    pending = 0
    for line in log.read_text().splitlines():
        named = re.search(r'write\(\d+<[^>]*/marks>, "<([^>"]*)>"', line)
        if named is not None:
            counts[named.group(1)] = pending
            pending = 0
        elif re.search(r"\b(fsync|fdatasync)\(\d+<[^>]*/data", line):
            pending += 1
    return counts


EXPECTED = {
    "session": 1,  # it is acknowledged
    "asked 1": 0,  # claim, run row, the user's message: nothing was promised yet
    "asked 2": 0,  # a read
    "asked 3": 0,  # two reads at once
    "asked 4": 1,  # settling: the landing of the only call goes with it
    "asked 5": 2,  # the first of two lands by itself ...
    "sent": 1,  # the end of the run
    "emit": 1,
    "retention": 1,
    "reads": 0,
    "spawned": 1,
}


@pytest.mark.parametrize("face", ["sync", "async"])
def test_what_is_synced_with_durability_power(tmp_path: Path, measured: Callable[..., None], face: str) -> None:
    counts = count_syncs(LIFE, tmp_path, face, "power")
    measured(**{name.replace(" ", "_"): count for name, count in counts.items()})
    print(counts)
    assert {name: counts.get(name) for name in EXPECTED} == EXPECTED
