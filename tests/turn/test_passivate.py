"""Letting sessions go: one with ``session.passivate``, all of them and their file with ``agent.passivate`` (§8)."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from typing import Any

import pytest

from thence import HostEnvConfig, RunInterrupted, SessionClosed, ToolContext
from thence.testing import call, reply

from ..kit import Gate, World, check_session, results, until

FAR = 60_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def held(world: World, **options: Any):
    """A session whose tool waits for its gate, and the task that sends."""
    gate = Gate()

    def slow() -> str:
        gate.wait()
        return "landed"

    session = await world.session([reply(calls=[call("slow")]), reply("resumed")], [slow], **options)
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    return session, task, gate


async def interrupted(task: Any) -> RunInterrupted:
    with pytest.raises(RunInterrupted) as error:
        await task
    return error.value


async def test_it_lets_go_and_the_run_goes_on_elsewhere(world: World):
    session, task, gate = await held(world)
    passivating = asyncio.ensure_future(session.passivate(now_ms() + FAR))
    await asyncio.sleep(0.05)
    assert not passivating.done()  # up to the deadline a running tool may land
    gate.open()
    assert await passivating is True
    error = await interrupted(task)
    assert error.reason == "passivated" and not session.is_closed
    other = await (await world.agent([reply("never"), reply("elsewhere")])).resume_session(session.session_id)
    world.model.requests.clear()
    result = await other.resume_run(error.run_id)
    assert result.status == "completed"
    assert results(await check_session(other))[0] == ("t1-r1-c0", True, "landed")


@pytest.mark.parametrize("deadline", [0, 1, -5])
async def test_a_passed_deadline_forces_the_release(world: World, deadline: int):
    session, task, gate = await held(world)
    start = time.monotonic()
    assert await session.passivate(deadline) is True
    assert time.monotonic() - start < 4  # far below the grace of an interrupt
    assert (await interrupted(task)).open_calls == ("t1-r1-c0",)
    gate.open()
    db = sqlite3.connect(world.db)
    assert db.execute("SELECT owner FROM session").fetchall() == [(None,)]
    db.close()


async def test_the_deadline_is_that_of_the_sessions_clock(world: World):
    session, task, gate = await held(world, host_env=HostEnvConfig("t", 1_700_000_000_000))
    assert await session.passivate(1_700_000_000_000 + 300) is True
    await interrupted(task)
    gate.open()


async def test_a_later_and_more_impatient_one_wins(world: World):
    session, task, gate = await held(world)
    patient = asyncio.ensure_future(session.passivate(now_ms() + FAR))
    await asyncio.sleep(0.05)
    start = time.monotonic()
    assert await session.passivate(0) is True
    assert await patient is True
    assert time.monotonic() - start < 4
    await interrupted(task)
    gate.open()


async def test_from_another_agent(world: World):
    session, task, gate = await held(world)
    other = await (await world.agent([])).resume_session(session.session_id)
    start = time.monotonic()
    assert await other.passivate(0) is True
    assert time.monotonic() - start < 4
    assert (await interrupted(task)).reason == "passivated"
    gate.open()


async def test_nothing_live_is_let_go_at_once(world: World):
    session = await world.session([reply("ok")])
    assert await session.passivate() is True
    await session.send("go")
    assert await session.passivate(now_ms() + FAR) is True
    await session.close()
    with pytest.raises(SessionClosed):
        await session.passivate()


@pytest.mark.parametrize("deadline", ["5", 1.5, True, b"1"])
async def test_an_odd_deadline_is_refused(world: World, deadline: Any):
    session = await world.session([])
    with pytest.raises(TypeError, match="deadline_ms"):
        await session.passivate(deadline)
    [agent] = world._agents
    with pytest.raises(TypeError, match="deadline_ms"):
        await agent.passivate(deadline)
    assert not agent.is_closed


async def test_all_of_an_agent_and_the_file_is_whole(world: World):
    running = 0

    def work(context: ToolContext) -> str:
        nonlocal running
        running += 1
        while not context.cancelled:
            time.sleep(0.002)
        return "landed"

    agent = await world.agent([reply(calls=[call("work")])] * 3, tools=[work])
    sessions = [await agent.session(".") for _ in range(3)]
    tasks = [asyncio.ensure_future(session.send("go")) for session in sessions]
    await until(lambda: running == 3)
    done = await agent.passivate(now_ms() + FAR)
    assert (done.file_complete, done.left) == (True, ())
    assert sorted(done.released) == sorted(session.session_id for session in sessions)
    assert done.to_dict()["file_complete"] is True
    for task in tasks:
        await interrupted(task)
    assert agent.is_closed
    with pytest.raises(SessionClosed):
        await agent.passivate()
    # Plain copying of the one file is right now.
    copy = world.folder / "copy.db"
    shutil.copyfile(world.db, copy)
    there = await world.agent([reply("there")] * 3, db="copy.db")
    for session in sessions:
        twin = await there.resume_session(session.session_id)
        last = (await twin.runs())[-1]
        assert (await twin.resume_run(last.id)).text == "there"
        assert results(await check_session(twin)) == [("t1-r1-c0", True, "landed")]


async def test_another_connection_makes_the_file_incomplete(world: World):
    session = await world.session([reply("ok")])
    await session.send("go")
    stranger = sqlite3.connect(world.db)
    stranger.execute("SELECT count(*) FROM session").fetchone()
    [agent] = world._agents
    assert (await agent.passivate()).file_complete is False
    stranger.close()


async def test_a_session_that_does_not_let_go_is_named(world: World, monkeypatch: pytest.MonkeyPatch):
    session, task, gate = await held(world)
    [agent] = world._agents
    monkeypatch.setattr("thence.host.passivating.MARGIN_S", 0.1)
    running = agent.raw._core.live[session.session_id]
    monkeypatch.setattr(running, "request_stop", lambda stopped: None)
    done = await agent.passivate(0)
    assert (done.file_complete, done.left, done.released) == (False, (session.session_id,), ())
    gate.open()
    with pytest.raises(Exception):  # noqa: B017 - its store is closed under it
        await task


async def test_memory_has_no_file(world: World):
    agent = await world.agent([], db=None)
    assert (await agent.passivate()).file_complete is False
