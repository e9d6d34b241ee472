"""``agent.doctor``: what is found, in both faces, and that looking changes nothing (§6, §13)."""

from __future__ import annotations

import os
import sqlite3

import pytest

from thence import BudgetExhausted
from thence.diagnosis import LARGE_WAL_BYTES, OwnerSeen, problems
from thence.store.checkpoint import has_wal_reset_bug
from thence.testing import reply

from ..kit import Gate, World, until
from .guard_kit import Guard


async def test_a_file_that_is_well(world: World):
    agent = await world.agent([reply("ok")])
    await (await agent.session(".")).send("go")
    found = await agent.doctor()
    assert found.problems == () and found.path == str(world.db)
    assert (found.journal_mode, found.interrupted_runs, found.orphaned_runs, found.waits_open, found.inbox) == (
        "wal", 0, 0, 0, 0,
    )  # fmt: skip
    assert found.file_bytes > 0 and found.wal_bytes > 0 and found.stuck_guard_threads == 0
    [owner] = found.owners
    assert (owner.life, owner.pid) == ("alive", os.getpid())
    assert found.sqlite_version == sqlite3.sqlite_version
    assert found.wal_reset_bug is has_wal_reset_bug(sqlite3.sqlite_version_info)
    assert found.to_dict()["owners"][0]["life"] == "alive"


async def test_memory(world: World):
    agent = await world.agent([], db=None)
    found = await agent.doctor()
    assert (found.path, found.journal_mode, found.file_bytes, found.problems) == (None, "memory", 0, ())


async def test_stuck_guard_threads_are_seen(world: World):
    gate = Gate()
    session = await world.session([reply("x")], budget_guard=Guard(llm=gate.wait), budget_guard_timeout_ms=20)
    with pytest.raises(BudgetExhausted):
        await session.send("go")
    [agent] = world._agents
    found = await agent.doctor()
    assert found.stuck_guard_threads == 1 and "guard calls" in found.problems[0]
    gate.open()
    for _ in range(200):
        if not (await agent.doctor()).stuck_guard_threads:
            break
        await until(lambda: True)
    assert found.interrupted_runs == 0


def test_what_is_a_problem():
    def found(**other):
        given = {"journal_mode": "wal", "wal_bytes": 0, "owners": (), "orphaned_runs": 0, "stuck": None}
        return problems(**{**given, **other})

    seen = {life: OwnerSeen("o", 1, "p", 0, life) for life in ("alive", "dead", "unknown")}
    assert found() == found(stuck=0) == found(owners=(seen["alive"], seen["dead"])) == ()
    assert found(wal_bytes=LARGE_WAL_BYTES) == ()
    assert "64 MiB" in found(wal_bytes=LARGE_WAL_BYTES + 1)[0]
    assert "'delete'" in found(journal_mode="delete")[0]
    assert "resume --all" in found(orphaned_runs=2)[0]
    assert "not known" in found(owners=(seen["unknown"],))[0]
    assert "3" in found(stuck=3)[0]
