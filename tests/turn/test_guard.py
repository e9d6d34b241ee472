"""The budget guard (§6): what it is asked and what its answers do."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from thence import BudgetExhausted, ModelError, RunFailed, ThenceError
from thence.testing import call, reply

from ..kit import Gate, World, check_session, kinds, results, stored, types
from .guard_kit import DENY, SOFT, Guard, act, hits


async def test_a_denied_model_request(world: World):
    session = await world.session([reply("never"), reply("later")], budget_guard=Guard(llm=DENY))
    with pytest.raises(BudgetExhausted) as denied:
        await session.send("go")
    error = denied.value
    assert str(error) == "Budget exhausted on 'tokens': monthly cap reached"
    assert issubclass(BudgetExhausted, RuntimeError) and issubclass(BudgetExhausted, ThenceError)
    assert (error.code, error.resumable, error.resource, error.reason) == (
        "BUDGET_EXHAUSTED", True, "tokens", "monthly cap reached",
    )  # fmt: skip
    assert world.model.requests == []
    assert await hits(session) == [
        {"resource": "tokens", "kind": "hard", "consumed": 0.0, "limit": 0.0, "message": "monthly cap reached"}
    ]
    # Never written as a fact for a denied model request (§4); the turn stays open, the session too.
    assert kinds(await check_session(session)) == ["run.configured", "user.message"]
    [run] = await session.runs()
    assert (run.status, run.resumable, run.error_code, run.error_message) == (
        "failed", True, "BUDGET_EXHAUSTED", str(error),
    )  # fmt: skip
    assert error.run_id == run.id and not session.is_closed
    await session.set_budget_guard(None)
    assert (await session.send("again")).text == "never"


async def test_a_denied_tool_call(world: World):
    session = await world.session(
        [reply(calls=[call("act"), call("act", {"n": 2})]), reply("ok")], [act], budget_guard=Guard(tool=DENY)
    )
    result = await session.send("go")
    assert (result.text, result.tool_calls_count) == ("ok", 0)
    facts = await check_session(session)
    sentence = "Budget exhausted on 'tokens': monthly cap reached"
    assert results(facts) == [("t1-r1-c0", False, sentence), ("t1-r1-c1", False, sentence)]
    assert [m.text for m in world.model.requests[1].messages[-2:]] == [sentence] * 2
    assert not any(m.ok for m in world.model.requests[1].messages[-2:] if m.role == "tool")
    denied = [stored(f) for f in facts if f.kind == "budget.denied"]
    assert denied[0] == {
        "call_key": "t1-r1-c0",
        "scope": "guard",
        "resource": "tokens",
        "reason": "monthly cap reached",
    }
    said = types(await session.run_events(result.run_id))
    assert "tool_execution_start" not in said and said.count("tool_end") == 2
    assert [hit["kind"] for hit in await hits(session)] == ["hard", "hard"]


async def test_B19_a_free_call_beside_a_denied_one_keeps_its_result(world: World):
    guard = Guard()
    guard.tool = lambda: DENY if guard.asked[-1][2] == "other" else None

    def other() -> str:
        raise AssertionError("must not run")

    session = await world.session(
        [reply(calls=[call("act", {"n": 7}), call("other")]), reply("ok")], [act, other], budget_guard=guard
    )
    await session.send("go")
    assert results(await check_session(session))[0] == ("t1-r1-c0", True, "7")
    assert results(await session.facts())[1][1] is False


@pytest.mark.parametrize("message", [None, "80 % used"])
async def test_soft_goes_on_with_an_event(world: World, message: str | None):
    soft = SOFT if message is None else {**SOFT, "message": message}
    session = await world.session(
        [reply(calls=[call("act")]), reply("ok")], [act], budget_guard=Guard(llm=soft, tool=soft)
    )
    assert (await session.send("go")).text == "ok"
    expected = {"resource": "tokens", "kind": "soft", "consumed": 80.0, "limit": 100.5}
    assert await hits(session) == [expected if message is None else {**expected, "message": message}] * 3


@pytest.mark.parametrize("answer", [None, {"decision": "allow"}, {"decision": "allow", "more": 1}])
async def test_allow_goes_on_without_an_event(world: World, answer: Any):
    session = await world.session([reply(calls=[call("act")]), reply("ok")], [act], budget_guard=Guard(answer, answer))
    assert (await session.send("go")).text == "ok"
    assert await hits(session) == []


async def test_what_it_is_asked_and_in_which_order(world: World):
    guard = Guard()
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "cache_read_tokens": 3}
    session = await world.session(
        [reply(calls=[call("act")], usage=usage), reply("ok", usage={"prompt_tokens": 1})], [act], budget_guard=guard
    )
    await session.send("go")
    assert [item[0] for item in guard.asked] == ["llm", "record", "tool", "llm", "record"]
    assert {item[1] for item in guard.asked} == {session.session_id}
    assert all(type(item[2]) is int and item[2] >= 0 for item in guard.asked if item[0] == "llm")
    assert guard.asked[1][2] == {**usage, "cache_write_tokens": 0}
    assert guard.asked[2][2] == "act"
    assert guard.asked[4][2] == {
        "prompt_tokens": 1, "completion_tokens": 0, "total_tokens": 1, "cache_read_tokens": 0, "cache_write_tokens": 0,
    }  # fmt: skip


async def test_it_is_asked_before_every_attempt_and_told_of_successes_only(world: World):
    guard = Guard()
    failed = ModelError("http_503", "503", retryable=True)
    session = await world.session(
        [failed, failed, reply("ok", usage={"prompt_tokens": 1})], budget_guard=guard, retry_base_ms=1
    )
    await session.send("go")
    assert [item[0] for item in guard.asked] == ["llm", "llm", "llm", "record"]


async def test_a_denial_between_attempts_ends_it(world: World):
    guard = Guard()
    guard.llm = lambda: DENY if len(guard.asked) == 2 else None
    session = await world.session([ModelError("x", "503", retryable=True)] * 5, budget_guard=guard, retry_base_ms=1)
    with pytest.raises(BudgetExhausted):
        await session.send("go")
    assert len(world.model.requests) == 1


async def test_missing_and_none_methods_allow(world: World):
    class Some:
        check_before_tool = None

    class Meter:
        def record_after_llm(self, session_id, usage): ...

    for guard in (Meter(), Some()):
        session = await world.session([reply(calls=[call("act")]), reply("ok")], [act], budget_guard=guard)
        assert (await session.send("go")).text == "ok"
        await session.close()


async def test_set_budget_guard_takes_effect_at_the_next_check_of_a_live_run(world: World):
    gate = Gate()

    async def hold(request):
        await gate.await_()
        return reply(calls=[call("act")])

    session = await world.session([hold, reply("never")], [act])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    await session.set_budget_guard(Guard(llm=DENY, tool=None))
    gate.open()
    with pytest.raises(BudgetExhausted):
        await task
    assert [ok for _, ok, _ in results(await check_session(session))] == [True]


async def test_none_clears_it_in_a_live_run(world: World):
    gate = Gate()

    async def hold(request):
        await gate.await_()
        return reply(calls=[call("act")])

    guard = Guard()
    session = await world.session([hold, reply("done")], [act], budget_guard=guard)
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    guard.llm = guard.tool = DENY
    await session.set_budget_guard(None)
    gate.open()
    assert (await task).text == "done"


async def test_guards_run_on_daemon_threads_not_on_the_callers(world: World):
    threads: list[threading.Thread] = []
    session = await world.session(
        [reply("ok")], budget_guard=Guard(llm=lambda: threads.append(threading.current_thread()))
    )
    await session.send("go")
    assert threads[0].daemon and threads[0] is not threading.main_thread()


async def test_a_hung_guard_does_not_hold_the_loop(world: World):
    gate = Gate()
    session = await world.session([reply("ok")], budget_guard=Guard(llm=gate.wait), budget_guard_timeout_ms=300)
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    ticks = 0
    while not task.done():
        await asyncio.sleep(0.01)
        ticks += 1
    gate.open()
    assert ticks >= 5
    with pytest.raises(BudgetExhausted):
        await task


async def test_after_a_denied_run_the_tools_of_the_turn_are_not_run_again(world: World):
    """B07 until resume_run is there: call and result stay; the denied turn raises."""
    guard = Guard()
    guard.llm = lambda: DENY if sum(item[0] == "llm" for item in guard.asked) == 2 else None
    session = await world.session([reply(calls=[call("act", {"n": 5})]), reply("ok")], [act], budget_guard=guard)
    with pytest.raises((BudgetExhausted, RunFailed)):
        await session.send("go")
    assert results(await check_session(session)) == [("t1-r1-c0", True, "5")]
    assert (await session.send("again")).text == "ok"
    assert results(await check_session(session)) == [("t1-r1-c0", True, "5")]
