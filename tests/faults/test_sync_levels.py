"""What is synced, and what is not: before an effect, before an acknowledgement, and nothing else (§5)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .kit import needs_strace, run_child

Measured = Callable[..., None]

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
    mark(f"effect {n}")
    return "done"

def asked(name, *calls):
    def answer(request):
        mark(name)
        return reply("" if calls else "done", [call(*one) for one in calls])
    return answer

script = [
    reply("warm"),
    reply("warm"),
    asked("ask 1", ("peek", {"n": 1})),
    asked("ask 2", ("peek", {"n": 2}), ("peek", {"n": 3})),
    asked("ask 3", ("poke", {"n": 1})),
    asked("ask 4", ("poke", {"n": 2}), ("poke", {"n": 3})),
    asked("ask 5"),
    asked("ask 6"),
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


Counts = list[tuple[str, int]]


def count_syncs(code: str, tmp_path: Path, *args: str) -> Counts:
    """Each mark after ``begin``, with the syncs of the database's files since the mark before it."""
    strace = needs_strace()
    log, db = tmp_path / "trace", tmp_path / "data" / "a.db"
    db.parent.mkdir()
    under = [strace, "-f", "-y", "-s", "100", "-o", str(log), "-e", "trace=fsync,fdatasync,write"]
    done = run_child(code, db, *args, tmp_path / "marks", under=under)
    assert done.returncode == 0, done.stderr
    counts: Counts = []
    pending = 0
    for line in log.read_text().splitlines():
        named = re.search(r'write\(\d+<[^>]*/marks>, "<([^>"]*)>"', line)
        if named is not None:
            counts.append((named.group(1), pending))
            pending = 0
        elif re.search(r"\b(fsync|fdatasync)\(\d+<[^>]*/data", line):
            pending += 1
    begin = next(at for at, (name, _) in enumerate(counts) if name == "begin")
    return counts[begin + 1 :]


POWER = [
    ("session", 1),
    # claim, run row, the user's message: nothing is promised yet
    ("ask 1", 0),
    # rounds of reads
    ("ask 2", 0),
    ("ask 3", 0),
    # started before the effect; the only landing goes with the settling
    ("effect 1", 1),
    ("ask 4", 1),
    # two, one after the other: the first lands by itself before the second starts
    ("effect 2", 1),
    ("effect 3", 2),
    ("ask 5", 1),
    ("sent", 1),
    ("emit", 1),
    ("retention", 1),
    ("reads", 0),
    # the run may begin, and even end, before its caller is told: its beginning and its end, looked at together
    ("spawned", 2),
]


def merged(counts: Counts) -> Counts:
    """With the marks of the spawned run, which race with those of its caller, made one."""
    racing = [count for name, count in counts if name in ("spawned", "ask 6", "end")]
    return [*(one for one in counts if one[0] not in ("spawned", "ask 6", "end")), ("spawned", sum(racing))]


@pytest.mark.parametrize("face", ["sync", "async"])
def test_what_is_synced(tmp_path: Path, measured: Measured, face: str) -> None:
    counts = count_syncs(LIFE, tmp_path, face, "power")
    measured(syncs=counts)
    assert merged(counts) == POWER


def test_nothing_is_synced_where_only_the_process_may_die(tmp_path: Path, measured: Measured) -> None:
    counts = count_syncs(LIFE, tmp_path, "sync", "process")
    measured(syncs=counts)
    assert merged(counts) == [(name, 0) for name, _ in POWER]


@pytest.mark.parametrize(("durability", "syncs"), [("power", 1), ("process", 0)])
def test_a_cancel_from_elsewhere_is_synced_before_it_is_acknowledged(
    tmp_path: Path, durability: str, syncs: int
) -> None:
    assert count_syncs(CANCEL, tmp_path, durability) == [("cancel", syncs)]
