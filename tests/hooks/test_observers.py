"""What observers are told, and when (§10)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from typing import Any

import pytest

from thence import (
    Hook,
    HookContext,
    ModelError,
    PermissionPolicy,
    RunFailed,
    RunInterrupted,
    SessionBusy,
    SessionOptions,
    tool,
)
from thence.testing import call, reply

from ..kit import Gate, World, check_session, results
from ..turn.guard_kit import Guard
from .hook_kit import TYPES, Acts, Told, all_types, one_round, register

TAGS = {"tenant_id": "t", "principal": "p", "agent_template_id": "a", "correlation_id": None}


async def test_a_whole_turn_as_hooks_see_it(world: World):
    told = Told()
    session = await world.session(
        one_round(), [Acts().tool()], hooks=all_types(told), tenant_id="t", principal="p", agent_template_id="a"
    )
    result = await session.send("go")
    await session.close()
    assert told.types == [
        "session_start", "pre_llm", "post_llm", "pre_tool_use", "post_tool_use", "pre_llm", "post_llm", "run_end",
        "session_end",
    ]  # fmt: skip
    by_type = {context.event_type: context for context in told.contexts}
    assert {context.session_id for context in told.contexts} == {session.session_id}
    assert all(context.tags == TAGS for context in told.contexts)
    for kind in TYPES:
        assert by_type[kind].run_id == (None if kind.startswith("session_") else result.run_id), kind
    pre, post = by_type["pre_tool_use"], by_type["post_tool_use"]
    assert (pre.tool_name, pre.call_key, pre.arguments, pre.result, pre.ok) == ("act", "t1-r1-c0", {"n": 1}, None, None)
    assert (post.tool_name, post.call_key, post.arguments, post.result, post.ok) == (
        "act", "t1-r1-c0", {"n": 1}, "did 1", True
    )  # fmt: skip
    answers = [context for context in told.contexts if context.event_type == "post_llm"]
    assert [(one.request, one.text) for one in answers] == [(1, "looking"), (2, "ok")]
    assert {one.model for one in answers} == {"scripted"}
    assert [one.usage.prompt_tokens for one in answers if one.usage] == [7, 7]
    end = by_type["run_end"]
    assert (end.status, end.text, end.error_code) == ("completed", "ok", None)
    assert end.usage is not None and end.usage.prompt_tokens == 14


async def test_a_context_is_frozen():
    context: Any = HookContext("pre_llm", "s")
    with pytest.raises(AttributeError):
        context.model = "x"


async def test_a_failed_call_and_its_result(world: World):
    def act(n: int) -> str:
        raise ValueError("broken")

    told = Told()
    session = await world.session(one_round(), [act], hooks=[Hook("post_tool_use", told)])
    await session.send("go")
    [context] = told.contexts
    assert (context.ok, context.result) == (False, "Error: ValueError: broken")


async def test_what_an_observer_returns_changes_nothing(world: World):
    block = Told({"decision": "block", "reason": "no", "arguments": {}, "model": "x"})
    hooks = [hook for hook in all_types(block) if not hook.event_type.startswith("pre_")]
    session = await world.session(one_round(), [Acts().tool()], hooks=hooks)
    assert (await session.send("go")).text == "ok"
    assert results(await check_session(session)) == [("t1-r1-c0", True, "did 1")]
    assert [request.model for request in world.model.requests] == ["scripted"] * 2


async def test_calls_that_run_side_by_side_are_told_in_call_order_when_all_have_landed(world: World):
    gate = Gate()
    running: list[int] = []

    @tool(effect="read")
    def look(n: int) -> str:
        running.append(n)
        if n == 0:
            gate.wait()
        else:
            time.sleep(0.01)
        running.remove(n)
        return f"saw {n}"

    busy: list[list[int]] = []
    told = Told(lambda context: busy.append(list(running)))
    session = await world.session(
        [reply(calls=[call("look", {"n": n}) for n in range(3)]), reply("ok")], [look],
        hooks=[Hook("post_tool_use", told)],
    )  # fmt: skip
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    await asyncio.sleep(0.1)
    assert told.contexts == []
    gate.open()
    await task
    assert [context.result for context in told.contexts] == ["saw 0", "saw 1", "saw 2"]
    assert busy == [[], [], []]


async def test_what_is_told_is_in_the_file(world: World):
    """A handler may take its time, or kill the process: nothing that it is told of may be lost by that."""
    seen: dict[str, Any] = {}

    def look(context: HookContext) -> None:
        db = sqlite3.connect(f"file:{world.db}?mode=ro", uri=True)
        kinds = [kind for (kind,) in db.execute("SELECT kind FROM facts")]
        landed = db.execute("SELECT count(*) FROM inflight WHERE landed_ms IS NOT NULL").fetchone()[0]
        [(status,)] = db.execute("SELECT status FROM runs").fetchall() or [(None,)]
        seen[f"{context.event_type} {context.request or ''}"] = (kinds, landed, status)
        db.close()

    session = await world.session(one_round(), [Acts().tool()], hooks=all_types(look))
    await session.send("go")
    start = ["run.configured", "user.message"]
    assert seen["pre_llm 1"][0] == start
    assert seen["post_llm 1"][0] == [*start, "model.turn"]
    assert seen["post_tool_use "][:2] == ([*start, "model.turn"], 1)
    assert seen["pre_llm 2"][0] == [*start, "model.turn", "tool.result"]
    assert seen["post_llm 2"][0] == [*start, "model.turn", "tool.result", "model.turn"]
    assert seen["run_end "][0][-1] == "turn.ended" and seen["run_end "][2] == "completed"


# ------------------------------------------------------------------ how runs end


async def test_run_end_of_a_failed_run(world: World):
    told = Told()
    session = await world.session([ModelError("400", "bad", retryable=False)], hooks=[Hook("run_end", told)])
    with pytest.raises(RunFailed):
        await session.send("go")
    [end] = told.contexts
    assert (end.status, end.error_code, end.text) == ("failed", "LLM_ERROR", None)


@pytest.mark.parametrize("how", ["cancel", "interrupt"])
async def test_run_end_of_a_stopped_run(world: World, how: str):
    gate, told = Gate(), Told()

    def act(n: int) -> str:
        gate.wait()
        return "late"

    hooks = [Hook("run_end", told), Hook("post_tool_use", told)]
    session = await world.session(one_round(), [act], hooks=hooks)
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    await getattr(session, how)()
    gate.open()
    if how == "interrupt":
        with pytest.raises(RunInterrupted):
            await task
    else:
        assert (await task).status == "cancelled"
    # a cancel gives the call a second to land, an interrupt five: only those are sure to be enough
    assert told.types == ["post_tool_use", "run_end"] or (how == "cancel" and told.types == ["run_end"])
    end = told.contexts[-1]
    status, code = ("interrupted", "RUN_INTERRUPTED") if how == "interrupt" else ("cancelled", None)
    assert (end.status, end.error_code) == (status, code)


async def parked(world: World, *hooks: Hook) -> Any:
    """A session of these hooks whose run waits to be allowed its call."""
    options: dict[str, Any] = {"hooks": hooks, "permission_policy": PermissionPolicy(ask=("act",))}
    session = await world.session(one_round(), [Acts().tool()], **options)
    assert (await session.send("go")).status == "parked"
    return session


@pytest.mark.parametrize("how", ["cancel", "cancel_run"])
async def test_run_end_of_a_parked_run_that_is_cancelled(world: World, how: str):
    """As of every other run: once, and when the end is in the file. Parking is no end."""
    session: Any = None
    seen: list[Any] = []
    loops: list[Any] = []
    told = Told(lambda context: seen.append((session.raw, context.status)))

    async def where(context: HookContext) -> None:
        loops.append(asyncio.get_running_loop())

    def look(context: HookContext) -> None:
        db = sqlite3.connect(f"file:{world.db}?mode=ro", uri=True)
        seen.append(db.execute("SELECT r.status, s.owner FROM runs r, session s").fetchall())
        db.close()

    session = await parked(world, Hook("run_end", told), Hook("run_end", where), Hook("run_end", look))
    run_id = (await session.runs())[0].id
    assert told.types == []
    assert await (session.cancel() if how == "cancel" else session.cancel_run(run_id)) is True
    [end] = told.contexts
    assert (end.run_id, end.status, end.error_code, end.text) == (run_id, "cancelled", None, None)
    assert end.usage is not None and end.usage.prompt_tokens == 7
    assert seen[1] == [("cancelled", None)]
    assert (loops[0] is asyncio.get_running_loop()) is (world.face == "async")
    assert await session.cancel() is False
    assert len(told.contexts) == 1


async def test_what_hooks_of_a_cancelled_parked_run_may_do(world: World, caplog: pytest.LogCaptureFixture):
    """Read, but not begin something; those that hang share a second, and a failure changes nothing."""
    gate, seen = Gate(), list[Any]()
    session: Any = None

    def plain(context: HookContext) -> None:
        seen.append(session.raw.runs()[-1].status)
        session.raw.send("inner")

    async def later(context: HookContext) -> None:
        seen.append((await session.raw.runs())[-1].status)
        await session.raw.send("inner")

    handlers = [plain if world.face == "sync" else later, *[lambda _: gate.wait()] * 3]
    session = await parked(world, *(Hook("run_end", handler) for handler in handlers))
    start = time.monotonic()
    assert await session.cancel() is True
    assert time.monotonic() - start < 15
    gate.open()
    assert seen == ["cancelled"] and "SessionBusy" in caplog.text
    assert (await session.send("next")).status == "completed"
    await check_session(session)


@pytest.mark.parametrize("kind", ["pre_tool_use", "pre_llm"])
async def test_a_stop_does_not_wait_for_a_gate(world: World, kind: str):
    """Its 30 s are not over, and what it says does not matter any more: nothing is recorded of it."""
    gate = Gate()
    guard = Guard()
    session = await world.session(
        one_round(), [Acts().tool()], hooks=[Hook(kind, lambda _: gate.wait())], budget_guard=guard
    )
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    start = time.monotonic()
    assert await session.cancel() is True
    assert (await task).status == "cancelled"
    assert time.monotonic() - start < 15
    if kind == "pre_llm":
        assert guard.asked == []
    assert all(not ok and "cancelled" in text for _, ok, text in results(await check_session(session)))
    gate.open()


async def test_the_time_limit_of_the_run_is_kept_while_a_hook_hangs(world: World):
    gate = Gate()
    hooks = [Hook("pre_tool_use", lambda _: gate.wait())]
    session = await world.session(one_round(), [Acts().tool()], hooks=hooks, max_execution_time_ms=150)
    with pytest.raises(RunFailed, match="max_execution_time_ms=150") as failed:
        await session.send("go")
    assert (failed.value.code, failed.value.resumable) == ("EXECUTION_TIMEOUT", True)
    gate.open()


async def test_a_stop_gives_observers_a_second_and_no_more(world: World):
    gate = Gate()
    session = await world.session(one_round(), [Acts().tool()], hooks=[Hook("run_end", lambda _: gate.wait())] * 3)
    start = time.monotonic()
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    await session.interrupt()  # nothing is live any more in the file: closing is what stops the operation
    await session.close()
    await task
    assert time.monotonic() - start < 15
    gate.open()


# ------------------------------------------------------------------ sessions


async def test_session_start_and_end_come_once_for_each_session_object_that_did_something(world: World):
    told = Told()
    agent = await world.agent([reply("ok")] * 3)
    hooks = [hook for hook in all_types(told) if hook.event_type.startswith("session_")]

    async def opened(**given: Any) -> Any:
        return await agent.session(".", SessionOptions(session_id="s", hooks=hooks, **given))

    idle = await opened()
    await idle.history()
    await idle.close()
    assert told.types == []
    session = await opened()
    await session.send("one")
    await session.send("two")
    assert told.types == ["session_start"]
    await session.close()
    await session.close()
    assert told.types == ["session_start", "session_end"]
    again = await opened()
    await again.send("three")
    await agent.close()
    assert told.types == ["session_start", "session_end"] * 2
    await again.close()
    assert told.types == ["session_start", "session_end"] * 2
    assert all(context.run_id is None for context in told.contexts)


async def test_hooks_of_the_session_that_are_registered_after_opening(world: World):
    told = Told()
    session = await world.session([reply("ok")])
    for kind in ("session_start", "session_end"):
        await register(session, kind, told)
    await session.send("go")
    await session.close()
    assert told.types == ["session_start", "session_end"]


# ------------------------------------------------------------------ calling back


async def test_reading_is_fine_and_an_operation_is_refused(world: World):
    seen: list[Any] = []
    session: Any = None

    def plain(context: HookContext) -> None:
        seen.append(len(session.raw.history()))
        try:
            session.raw.send("inner")
        except SessionBusy as error:
            seen.append(error.code)

    async def later(context: HookContext) -> None:
        seen.append(len(await session.raw.history()))
        try:
            await session.raw.send("inner")
        except SessionBusy as error:
            seen.append(error.code)

    session = await world.session(one_round(), [Acts().tool()])
    handler = plain if world.face == "sync" else later
    for kind in ("pre_llm", "pre_tool_use", "run_end", "session_start"):
        await register(session, kind, handler)
    assert (await session.send("go")).text == "ok"
    assert seen == [0, "SESSION_BUSY", 1, "SESSION_BUSY", 2, "SESSION_BUSY", 3, "SESSION_BUSY", 4, "SESSION_BUSY"]


async def test_plain_handlers_run_on_daemon_threads(world: World):
    threads: list[threading.Thread] = []
    session = await world.session(
        one_round(), [Acts().tool()], hooks=all_types(lambda _: threads.append(threading.current_thread()))
    )
    await session.send("go")
    assert threads and all(thread.daemon and thread is not threading.main_thread() for thread in threads)


async def test_an_async_handler_is_on_the_runs_own_loop_in_the_async_face(world: World):
    loops: list[Any] = []

    async def where(context: HookContext) -> None:
        loops.append(asyncio.get_running_loop())

    session = await world.session(one_round(), [Acts().tool()], hooks=[Hook("pre_tool_use", where)])
    await session.send("go")
    assert (loops[0] is asyncio.get_running_loop()) is (world.face == "async")
