"""One transcript operation at a time, and what a closed session says (§1)."""

from __future__ import annotations

import asyncio

import pytest

from thence import SessionBusy, SessionClosed, SessionNotFound, SessionOptions
from thence.testing import reply

from ..kit import Gate, World, check_session

BUSY = "Session '{0}' already has an active operation"
CLOSED = "Session '{0}' is closed"


async def held(world: World):
    gate = Gate()

    async def hang(request):
        await gate.await_()
        return reply("first")

    session = await world.session([hang, *[reply("next")] * 9])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    return session, gate, task


@pytest.mark.parametrize("how", ["send", "stream"])
async def test_a_second_operation_fails_at_once_with_session_busy(world: World, how: str):
    session, gate, task = await held(world)
    with pytest.raises(SessionBusy) as busy:
        if how == "send":
            await session.send("second")
        else:
            stream = await session.stream("second")
            _ = [event async for event in stream]
    assert not task.done()
    assert str(busy.value).startswith(BUSY.format(session.session_id))
    assert busy.value.code == "SESSION_BUSY"
    gate.open()
    assert (await task).text == "first"
    assert (await session.send("third")).text == "next"
    await check_session(session)


async def test_the_busy_text_is_exactly_this(world: World):
    session, gate, task = await held(world)
    with pytest.raises(SessionBusy) as busy:
        await session.send("second")
    gate.open()
    await task
    assert str(busy.value) == BUSY.format(session.session_id)


@pytest.mark.parametrize("where", ["same agent", "other agent"])
async def test_busy_holds_across_handles_and_agents(world: World, where: str):
    session, gate, task = await held(world)
    agent = world._agents[0] if where == "same agent" else await world.agent([reply("other")])
    twin = await agent.resume_session(session.session_id)
    with pytest.raises(SessionBusy):
        await twin.send("second")
    gate.open()
    await task
    assert (await twin.send("third")).status == "completed"
    assert (await session.send("fourth")).status == "completed"
    assert len(await check_session(session)) == len(await check_session(twin)) == 10


async def test_of_many_at_once_exactly_one_runs_at_a_time(world: World):
    """C05 in one process: 20 sends at once; each either completes or is told SessionBusy, and nothing interleaves."""
    session = await world.session([reply("ok")] * 20)
    outcomes = await asyncio.gather(*(session.send(f"m{n}") for n in range(20)), return_exceptions=True)
    done = [o for o in outcomes if not isinstance(o, BaseException)]
    assert done and all(isinstance(o, SessionBusy) for o in outcomes if isinstance(o, BaseException))
    facts = await check_session(session)
    assert sum(f.kind == "turn.ended" for f in facts) == len(done) == len(world.model.requests)


async def test_reads_work_while_a_run_is_live(world: World):
    session, gate, task = await held(world)
    run = await session.current_run()
    assert run is not None and not run.is_terminal and run.state == run.status
    assert len(await session.facts()) == 2
    assert [m.role for m in await session.history()] == ["user"]
    assert [r.id for r in await session.runs()] == [run.id]
    assert len(await session.run_events(run.id)) >= 1
    [info] = await world._agents[0].list_sessions()
    assert info.busy
    gate.open()
    await task
    [info] = await world._agents[0].list_sessions()
    assert not info.busy and await session.current_run() is None


METHODS = [
    ("send", ("x",)), ("history", ()), ("facts", ()), ("runs", ()), ("run_snapshot", ("r",)), ("current_run", ()),
    ("run_events", ("r",)), ("run_event_page", ("r",)), ("events", ()), ("trace_events", ()), ("cancel", ()),
    ("cancel_run", ("r",)), ("interrupt", ("x",)), ("set_retention", ({},)), ("set_budget_guard", (None,)),
    ("emit", ({"type": "x", "payload": {}},)),
]  # fmt: skip


@pytest.mark.parametrize(("method", "arguments"), METHODS, ids=[m for m, _ in METHODS])
async def test_after_close_every_method_says_so(world: World, method: str, arguments: tuple):
    session = await world.session([reply("ok")])
    assert not session.is_closed
    await session.close()
    await session.close()  # idempotent
    assert session.is_closed
    with pytest.raises(SessionClosed) as closed:
        await getattr(session, method)(*arguments)
    assert str(closed.value) == CLOSED.format(session.session_id)
    assert closed.value.code == "SESSION_CLOSED"
    assert session.session_id and session.workspace  # identity stays readable


async def test_stream_and_tail_after_close(world: World):
    session = await world.session([reply("ok")])
    await session.close()
    with pytest.raises(SessionClosed):
        stream = await session.stream("x")
        _ = [event async for event in stream]
    with pytest.raises(SessionClosed):
        await session.tail_list("run-x")


async def test_closing_the_agent_closes_its_sessions(world: World):
    session = await world.session([reply("ok")])
    agent = world._agents[0]
    await agent.close()
    await agent.close()
    assert agent.is_closed and session.is_closed
    with pytest.raises(SessionClosed, match="is closed"):
        await session.send("x")
    with pytest.raises(SessionClosed):
        await agent.session(".")
    with pytest.raises(SessionClosed):
        await agent.list_sessions()


async def test_closing_one_handle_leaves_the_session_to_others(world: World):
    agent = await world.agent([reply("a"), reply("b")])
    first = await agent.session(".", SessionOptions(session_id="s"))
    second = await agent.session(".", SessionOptions(session_id="s"))
    await first.send("1")
    await first.close()
    assert (await second.send("2")).text == "b"


async def test_an_unknown_session_is_not_found(world: World):
    agent = await world.agent([])
    with pytest.raises(SessionNotFound) as missing:
        await agent.resume_session("nope")
    assert str(missing.value) == "Session not found: nope"
    assert missing.value.code == "SESSION_NOT_FOUND" or missing.value.code == "SESSION_ERROR"
    assert await agent.list_sessions() == []


async def test_an_agent_in_memory_runs_turns_and_leaves_no_file(world: World):
    agent = await world.agent([reply("ok"), reply("ok")], db=None)
    session = await agent.session(".")
    assert (await session.send("go")).text == "ok"
    assert (await session.send("go")).text == "ok"
    assert len(await check_session(session)) == 7
    await agent.close()
    assert list(world.folder.iterdir()) == []


async def test_the_file_is_0600_and_a_session_survives_its_agent(world: World):
    session = await world.session([reply("ok")])
    await session.send("go")
    assert world.db.stat().st_mode & 0o777 == 0o600
    await world.close()
    agent = await world.agent([reply("again")])
    again = await agent.resume_session(session.session_id)
    assert again.workspace == session.workspace
    assert (await again.send("more")).text == "again"
    assert [m.text for m in await again.history()] == ["go", "ok", "more", "again"]
