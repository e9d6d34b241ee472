"""The WAL-reset race of SQLite before 3.51.3 beside the engine's own checkpoints (E01, P11).

A checkpoint that runs while somebody else's commit starts the WAL anew may lose committed rows. Every process here
commits as fast as it can and checkpoints after each commit that left nobody waiting, thousands of times more often
than it would by itself; in memory where there is one, and without the gate between processes, which is for fairness
and keeps the race from happening. (Seen to lose 10,000 commits in 15 seconds with unguarded checkpoints.)
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from thence import Agent

from ..nursery import start
from .kit import PATIENCE_S, Judge, environment

PRELUDE = """
import json, random, sys, time
from thence import *
from thence.plan import Op, Plan
from thence.store import checkpoint, locks
from thence.store.sqlite import SqliteStore
from thence.testing import reply

checkpoint.SOFT_BYTES = 1
checkpoint.HARD_BYTES = 60_000
db, name, until = sys.argv[1], sys.argv[2], float(sys.argv[3])
if sys.argv[4] == "no gate":
    locks.Gate.enter = lambda self: None
"""

TURNS = """
class Model:
    name = "yes"
    def stream(self, request):
        yield reply("yes").reply

facts = turns = 0
with Agent(db, model=Model()) as agent:
    session = agent.session("/nowhere", SessionOptions(session_id=name))
    while time.monotonic() < until:
        session.send("go on")
        turns += 1
    facts = len(session.facts())
    stats = agent._core.store.stats()
print(json.dumps({"name": name, "kept": facts, "commits": stats.commits, "checkpoints": stats.checkpoints}))
"""

ROWS = """
store = SqliteStore(db, name, durability="process")
kept = 0
while time.monotonic() < until:
    row = {"owner": f"{name}-{kept}", "pid": kept, "program": "x" * 100, "since_ms": 0}
    store.commit(Plan((Op("owner_add", (row,)),)))
    kept += 1
    time.sleep(random.random() * 0.0003)
stats = store.stats()
store.close()
print(json.dumps({"name": name, "kept": kept, "commits": stats.commits, "checkpoints": stats.checkpoints}))
"""


def race(db: Path, seconds: float, gate: str, measured: Callable[..., None]) -> None:
    """Four processes for ``seconds``; everything that was acknowledged must be there."""
    Agent(db).close()
    until = time.monotonic() + 0.5 + seconds
    children = [
        start(
            ["-c", PRELUDE + code, str(db), name, str(until), gate],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name, code in (("t1", TURNS), ("t2", TURNS), ("w1", ROWS), ("w2", ROWS))
    ]
    reports = []
    for child in children:
        out, errors = child.communicate(timeout=seconds + PATIENCE_S)
        assert child.returncode == 0, errors[-2000:]
        reports.append(json.loads(out))
    commits = sum(report["commits"] for report in reports)
    checkpoints = sum(report["checkpoints"] for report in reports)
    measured(sqlite=sqlite3.sqlite_version, commits=commits, checkpoints=checkpoints)
    assert commits > 100 and checkpoints > 20
    with Judge(db) as judge:
        assert judge.complaints() == []
        for report in reports:
            if report["name"].startswith("t"):
                kept = judge.rows("SELECT facts FROM sessions WHERE session_id = ?", (report["name"],))
            else:
                kept = judge.rows("SELECT count(*) FROM owner WHERE owner GLOB ?", (f"{report['name']}-*",))
            assert kept == [(report["kept"],)], report


def test_e01_checkpoints_lose_nothing(quick: Path, measured: Callable[..., None]) -> None:
    race(quick / "a.db", 2, "no gate", measured)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("gate", ["no gate", "gate"])
def test_e01_checkpoints_lose_nothing_in_a_minute(quick: Path, measured: Callable[..., None], gate: str) -> None:
    race(quick / "a.db", 60, gate, measured)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_e01_checkpoints_lose_nothing_on_the_disk(tmp_path: Path, measured: Callable[..., None]) -> None:
    race(tmp_path / "a.db", 60, "no gate", measured)
