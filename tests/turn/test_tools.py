"""Tools that raise, hang or lie: a failed result, never a failed turn (§5, X1-X3)."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings

import pytest

from thence import ToolContext, ToolOutput, tool
from thence.testing import call, reply

from ..kit import Gate, World, check_session, results, stored, until


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


RAISED = [
    ValueError("bad value"),
    KeyError("missing"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    MemoryError(),
    RecursionError(),
    StopIteration(1),
    BaseException("bare"),
    Unprintable(),
]


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])
@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
async def test_whatever_a_tool_raises_is_a_failed_result(world: World, error: BaseException, is_async: bool):
    if is_async and isinstance(error, StopIteration):
        pytest.skip("Python itself turns it into a RuntimeError")

    @tool
    def plain() -> str:
        raise error

    @tool(effect="read", name="plain")
    async def coroutine() -> str:
        raise error

    def after() -> str:
        return "alive"

    script = [reply(calls=[call("plain"), call("after")]), reply("ok")]
    session = await world.session(script, [coroutine if is_async else plain, after])
    result = await session.send("go")
    assert (result.status, result.text, result.tool_calls_count) == ("completed", "ok", 2)
    [first, second] = results(await check_session(session))
    assert first[1] is False and type(error).__name__ in first[2]
    assert second == ("t1-r1-c1", True, "alive")
    ends = [e.payload for e in await session.run_events(result.run_id) if e.type == "tool_end"]
    assert [end["exit_code"] for end in ends] == [1, 0]


async def test_a_tool_says_itself_that_it_failed(world: World):
    def fail() -> ToolOutput:
        return ToolOutput("tests: 2 red", ok=False, metadata={"red": 2})

    session = await world.session([reply(calls=[call("fail")]), reply("ok")], [fail])
    await session.send("go")
    facts = await check_session(session)
    assert results(facts) == [("t1-r1-c0", False, "tests: 2 red")]
    [fact] = [f for f in facts if f.kind == "tool.result"]
    assert stored(fact)["metadata"]["tool"] == {"red": 2}


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])
async def test_X1_a_hung_tool_is_a_failed_result_at_its_time_out(world: World, is_async: bool):
    gate = Gate()

    @tool(timeout_ms=100)
    def plain() -> str:
        gate.wait()
        return "too late"

    @tool(timeout_ms=100, name="plain")
    async def coroutine() -> str:
        await gate.await_()
        return "too late"

    session = await world.session([reply(calls=[call("plain")]), reply("ok")], [coroutine if is_async else plain])
    start = time.monotonic()
    result = await session.send("go")
    assert time.monotonic() - start < 10
    gate.open()
    assert result.text == "ok"
    [(_, ok, text)] = results(await check_session(session))
    assert not ok and "100" in text and "too late" not in text


async def test_tool_timeout_ms_is_the_sessions_and_a_tools_own_wins(world: World):
    @tool(effect="read")
    async def mine() -> str:
        await asyncio.sleep(30)
        return "?"

    @tool(effect="read", timeout_ms=20_000)
    async def own() -> str:
        await asyncio.sleep(0.2)
        return "in time"

    session = await world.session(
        [reply(calls=[call("mine"), call("own")]), reply("ok")], [mine, own], tool_timeout_ms=80
    )
    await session.send("go")
    [first, second] = results(await check_session(session))
    assert first[1] is False and second == ("t1-r1-c1", True, "in time")


async def test_the_tool_can_see_that_its_time_is_over(world: World):
    saw = threading.Event()

    @tool(timeout_ms=60)
    def slow(context: ToolContext) -> str:
        while not context.cancelled:
            time.sleep(0.005)
        saw.set()
        return "?"

    session = await world.session([reply(calls=[call("slow")]), reply("ok")], [slow])
    await session.send("go")
    await until(saw.is_set)


async def test_the_next_non_read_call_waits_for_a_late_tool_and_says_so(world: World):
    """§5: a sync tool that outlives its time-out goes on; the next non-read call waits for it, reads do not."""
    gate, order = Gate(), list[str]()

    @tool(timeout_ms=80)
    def slow() -> str:
        gate.wait()
        order.append("slow ended")
        return "late"

    @tool(effect="read")
    def look() -> str:
        order.append("look")
        threading.Timer(0.1, gate.open).start()
        return "seen"

    @tool
    def act() -> str:
        order.append("act")
        return "acted"

    calls = [call("slow"), call("look"), call("act"), call("act")]
    session = await world.session([reply(calls=calls), reply("ok")], [slow, look, act])
    await session.send("go")
    assert order == ["look", "slow ended", "act", "act"]
    facts = await check_session(session)
    assert [ok for _, ok, _ in results(facts)] == [False, True, True, True]
    metadata = {f.key: stored(f)["metadata"] for f in facts if f.kind == "tool.result"}
    assert "slow" in str(metadata["t1-r1-c2"])  # says that it waited, and for what
    assert "slow" not in str(metadata["t1-r1-c1"]) and "slow" not in str(metadata["t1-r1-c3"])


async def test_it_waits_for_a_late_tool_no_longer_than_its_own_time_out(world: World):
    gate = Gate()

    @tool(timeout_ms=50)
    def slow() -> str:
        gate.wait()
        return "late"

    @tool(timeout_ms=150)
    def act() -> str:
        return "acted"

    session = await world.session([reply(calls=[call("slow"), call("act")]), reply("ok")], [slow, act])
    result = await session.send("go")
    gate.open()
    assert result.text == "ok"
    facts = await check_session(session)
    assert [ok for _, ok, _ in results(facts)] == [False, True]
    assert "slow" in str(stored(facts[4])["metadata"])


async def test_a_late_result_changes_nothing(world: World):
    gate, left = Gate(), threading.Event()

    @tool(timeout_ms=50)
    def slow() -> str:
        gate.wait()
        left.set()
        return "late"

    session = await world.session([reply(calls=[call("slow")]), reply("a"), reply("b")], [slow])
    await session.send("1")
    before = [f.hash for f in await session.facts()]
    gate.open()
    await until(left.is_set)
    await session.send("2")
    facts = await check_session(session)
    assert [f.hash for f in facts][: len(before)] == before
    assert len(results(facts)) == 1


async def test_tools_see_the_callers_context_variables(world: World):
    import contextvars

    variable = contextvars.ContextVar("variable", default="unset")

    def look() -> str:
        return variable.get()

    session = await world.session([reply(calls=[call("look")]), reply("ok")], [look])
    if world.face == "async":  # the blocking face's scenario thread has a context of its own
        variable.set("set")
        await session.send("go")
        assert results(await session.facts()) == [("t1-r1-c0", True, "set")]


async def test_closing_leaves_no_event_loop_open(world: World):
    """An agent that ran async tools lets go of the loop they ran on."""

    async def look() -> str:
        return "seen"

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = await world.session([reply(calls=[call("look")]), reply("ok")], [look])
        await session.send("go")
        await world.close()
        world._agents.clear()
        del session
        world.model = None  # type: ignore[assignment]
        for _ in range(3):
            gc.collect()
            await asyncio.sleep(0.01)
    assert [str(w.message) for w in caught if issubclass(w.category, ResourceWarning)] == []
