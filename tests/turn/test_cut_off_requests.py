"""A model request that a stop cuts off was sent: its cost is unknown, and is counted as that (§6)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from thence import ModelError, PermissionPolicy, RunFailed, RunInterrupted, SessionError, SessionOptions, tool
from thence.testing import call, reply

from ..kit import Both, Gate, World, check_session

USED = {"prompt_tokens": 60, "completion_tokens": 40}


@tool(effect="read")
def look() -> str:
    """Look."""
    return "seen"


async def held(world: World, *after: Any, **options: Any) -> tuple[Both, Gate, asyncio.Task[Any]]:
    """A session whose second request is being answered; the first one's usage is not known either."""
    gate = Gate()

    async def hangs(request: Any) -> Any:
        await gate.await_()
        return reply("too late", usage=USED)

    session = await world.session([reply("", [call("look")]), hangs, *after], [look], **options)
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    return session, gate, task


async def counted(session: Both) -> tuple[int, int, list[int]]:
    """(known, unknown, unknown by run)."""
    usage = await session.usage()
    return usage.known, usage.unknown, [run.requests_without_usage for run in await session.runs()]


async def test_one_that_was_cancelled(world: World):
    session, gate, task = await held(world)
    await session.cancel()
    assert (await task).status == "cancelled"
    gate.open()
    assert await counted(session) == (0, 2, [2])
    await check_session(session)


async def test_one_that_ran_out_of_time(world: World):
    session, gate, task = await held(world, max_execution_time_ms=700)
    with pytest.raises(RunFailed) as failed:
        await task
    gate.open()
    assert failed.value.code == "EXECUTION_TIMEOUT"
    assert await counted(session) == (0, 2, [2])


@pytest.mark.parametrize("then", ["resume", "settle"])
async def test_one_that_was_interrupted(world: World, then: str):
    session, gate, task = await held(world, reply("done", usage=USED), reply("next", usage=USED))
    await session.interrupt("enough")
    with pytest.raises(RunInterrupted):
        await task
    gate.open()
    assert await counted(session) == (0, 2, [2])
    assert (await session.send("on", on_interrupted=then)).status == "completed"
    # The answer without usage is of the turn, and so of both runs; the request that was cut off is of the first alone.
    assert await counted(session) == ((2, 2, [2, 1, 0]) if then == "resume" else (1, 2, [2, 0]))


async def test_one_that_was_left_behind_by_closing_the_session(world: World):
    session, gate, task = await held(world)
    await session.close()
    gate.open()
    with pytest.raises(RunInterrupted):
        await task
    agent = await world.agent([reply("done", usage=USED)], tools=[look])
    again = await agent.resume_session(session.session_id)
    assert await counted(again) == (0, 2, [2])


async def test_a_failed_one_of_a_parked_run_that_is_cancelled(world: World):
    down = ModelError("http_503", "down", retryable=True)
    options = {"permission_policy": PermissionPolicy(ask=("look",)), "retry_base_ms": 0}
    session = await world.session([down, reply("", [call("look")], usage=USED)], [look], **options)
    assert (await session.send("go")).status == "parked"
    assert await session.cancel() is True
    assert await counted(session) == (1, 1, [1])


async def test_a_summary_that_failed_or_was_cut_off(world: World):
    gate = Gate()

    async def hangs(request: Any) -> Any:
        await gate.await_()
        return reply("too late", usage=USED)

    script = [reply(letter * 3000, usage=USED) for letter in "abc"]
    agent = await world.agent([*script, ModelError("http_400", "no", retryable=False), hangs])
    session = await agent.session(world.folder / "work", SessionOptions(session_id="s"))
    for prompt in "123":
        await session.send(prompt)
    with pytest.raises(ModelError):
        await session.compact()
    assert await counted(session) == (3, 1, [0, 0, 1])
    task = asyncio.ensure_future(session.compact())
    await gate.came()
    await session.close()
    gate.open()
    with pytest.raises(SessionError, match="interrupted"):
        await task
    again = await (await world.agent([])).resume_session("s")
    assert await counted(again) == (3, 2, [0, 0, 2])
