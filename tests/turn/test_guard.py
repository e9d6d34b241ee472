"""The budget guard (§6): what it is asked, what its answers do, and that everything unclear is a deny."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from thence import BudgetExhausted, ModelError, RunFailed, SessionConfiguration, ThenceError
from thence.testing import call, reply

from ..kit import Gate, World, check_session, kinds, results, types

DENY = {"decision": "deny", "resource": "tokens", "reason": "monthly cap reached"}
SOFT = {"decision": "soft", "resource": "tokens", "consumed": 80, "limit": 100.5}


class Guard:
    """Answers with what it was made with; remembers what it was asked."""

    def __init__(self, llm: Any = None, tool: Any = None, record: Any = None) -> None:
        self.llm, self.tool, self.record = llm, tool, record
        self.asked: list[tuple[Any, ...]] = []

    def check_before_llm(self, session_id, tokens):
        self.asked.append(("llm", session_id, tokens))
        return self.llm() if callable(self.llm) else self.llm

    def check_before_tool(self, session_id, name):
        self.asked.append(("tool", session_id, name))
        return self.tool() if callable(self.tool) else self.tool

    def record_after_llm(self, session_id, usage):
        self.asked.append(("record", session_id, usage))
        if callable(self.record):
            self.record()


def act(n: int = 0) -> int:
    return n


async def hits(session) -> list[dict[str, Any]]:
    [run] = (await session.runs())[-1:]
    return [dict(e.payload) for e in await session.run_events(run.id) if e.type == "budget_threshold_hit"]


async def test_a_denied_model_request(world: World):
    session = await world.session([reply("never"), reply("later")], budget_guard=Guard(llm=DENY))
    with pytest.raises(BudgetExhausted) as denied:
        await session.send("go")
    error = denied.value
    assert str(error) == "Budget exhausted on 'tokens': monthly cap reached"
    assert isinstance(error, RuntimeError) and isinstance(error, ThenceError)
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
    session = await world.session([reply(calls=[call("act"), call("act", {"n": 2})]), reply("ok")], [act], budget_guard=Guard(tool=DENY))
    result = await session.send("go")
    assert (result.text, result.tool_calls_count) == ("ok", 0)
    facts = await check_session(session)
    sentence = "Budget exhausted on 'tokens': monthly cap reached"
    assert results(facts) == [("t1-r1-c0", False, sentence), ("t1-r1-c1", False, sentence)]
    assert [m.text for m in world.model.requests[1].messages[-2:]] == [sentence] * 2
    assert not any(m.ok for m in world.model.requests[1].messages[-2:])
    denied = [f.to_dict()["payload"] for f in facts if f.kind == "budget.denied"]
    assert denied[0] == {"call_key": "t1-r1-c0", "scope": "guard", "resource": "tokens", "reason": "monthly cap reached"}
    said = types(await session.run_events(result.run_id))
    assert "tool_execution_start" not in said and said.count("tool_end") == 2
    assert [hit["kind"] for hit in await hits(session)] == ["hard", "hard"]


async def test_B19_a_free_call_beside_a_denied_one_keeps_its_result(world: World):
    guard = Guard()
    guard.tool = lambda: DENY if guard.asked[-1][2] == "other" else None

    def other() -> str:
        raise AssertionError("must not run")

    session = await world.session([reply(calls=[call("act", {"n": 7}), call("other")]), reply("ok")], [act, other], budget_guard=guard)
    await session.send("go")
    assert results(await check_session(session))[0] == ("t1-r1-c0", True, "7")
    assert results(await session.facts())[1][1] is False


@pytest.mark.parametrize("message", [None, "80 % used"])
async def test_soft_goes_on_with_an_event(world: World, message: str | None):
    soft = SOFT if message is None else {**SOFT, "message": message}
    session = await world.session([reply(calls=[call("act")]), reply("ok")], [act], budget_guard=Guard(llm=soft, tool=soft))
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
    session = await world.session([reply(calls=[call("act")], usage=usage), reply("ok", usage={"prompt_tokens": 1})], [act], budget_guard=guard)
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
    session = await world.session([failed, failed, reply("ok", usage={"prompt_tokens": 1})], budget_guard=guard, retry_base_ms=1)
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

    for guard in (object(), Some()):
        session = await world.session([reply(calls=[call("act")]), reply("ok")], [act], budget_guard=guard)
        assert (await session.send("go")).text == "ok"
        await session.close()


class Lying(dict):
    """A dict by name."""


class Everything:
    def __getattr__(self, name: str) -> str:
        return "allow"


async def coroutine() -> None: ...


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {"decision": "deny"}
    value["resource"] = value
    return value


MALFORMED: list[Any] = [
    True, False, 0, 1, "allow", "", b"allow", ["allow"], ("allow",), {}, {"decision": None}, {"decision": "ALLOW"},
    {"decision": "Allow "}, {"decision": True}, {"decision": ["allow"]}, {"decision": b"allow"}, {"Decision": "allow"},
    {"decision": "deny"}, {"decision": "deny", "resource": "r"}, {"decision": "deny", "reason": "r"},
    {"decision": "deny", "resource": 1, "reason": "r"}, {"decision": "deny", "resource": "r", "reason": None},
    {"decision": "soft"}, {"decision": "soft", "resource": "r"}, {**SOFT, "consumed": float("nan")},
    {**SOFT, "limit": float("inf")}, {**SOFT, "limit": "100"}, {**SOFT, "limit": True}, {**SOFT, "consumed": None},
    {**SOFT, "message": 7}, {**SOFT, "consumed": 10**400}, {**SOFT, "resource": None}, Lying(decision="allow"),
    Everything(), {"decision": "permit"}, {"allow": True}, object(), float("nan"), 3.5, {"decision": Everything()},
]  # fmt: skip


def malformed_id(value: Any) -> str:
    return f"{type(value).__name__}-{str(value)[:30]}" if type(value) is not object else "object"


@pytest.mark.parametrize("answer", MALFORMED, ids=malformed_id)
async def test_G3_a_malformed_answer_is_a_deny(world: World, answer: Any):
    session = await world.session([reply("never")], budget_guard=Guard(llm=lambda: answer))
    with pytest.raises(BudgetExhausted) as denied:
        await session.send("go")
    assert denied.value.resource == "budget_guard_error"
    assert str(denied.value).startswith("Budget exhausted on 'budget_guard_error': ")
    assert "check_before_llm" in denied.value.reason
    assert world.model.requests == []


@pytest.mark.parametrize("make", [coroutine, cyclic, lambda: (x for x in ())], ids=["coroutine", "cyclic", "generator"])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_G3_odd_answers_are_a_deny(world: World, make: Callable[[], Any]):
    session = await world.session([reply(calls=[call("act")]), reply("ok")], [act], budget_guard=Guard(tool=make))
    await session.send("go")
    [(_, ok, text)] = results(await check_session(session))
    assert not ok and text.startswith("Budget exhausted on 'budget_guard_error': ") and "check_before_tool" in text


RAISED = [
    ValueError("v"), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), MemoryError(), RecursionError(),
    asyncio.CancelledError(), StopIteration(), BaseException("b"),
]  # fmt: skip


@pytest.mark.parametrize("where", ["llm", "tool"])
@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
async def test_G2_whatever_it_raises_is_a_deny(world: World, error: BaseException, where: str):
    def fail() -> None:
        raise error

    guard = Guard(llm=fail) if where == "llm" else Guard(tool=fail)
    session = await world.session([reply(calls=[call("act")]), reply("ok")], [act], budget_guard=guard)
    if where == "llm":
        with pytest.raises(BudgetExhausted) as denied:
            await session.send("go")
        text = str(denied.value)
    else:
        await session.send("go")
        [(_, _, text)] = results(await check_session(session))
    assert text.startswith("Budget exhausted on 'budget_guard_callback': ")
    assert f"check_before_{where}" in text and type(error).__name__ in text


@pytest.mark.parametrize("where", ["llm", "tool"])
async def test_G1_a_hung_guard_is_a_deny_at_its_time_out(world: World, where: str):
    gate = Gate()
    guard = Guard(llm=gate.wait) if where == "llm" else Guard(tool=gate.wait)
    session = await world.session([reply(calls=[call("act")]), reply("ok")], [act], budget_guard=guard, budget_guard_timeout_ms=80)
    start = time.monotonic()
    if where == "llm":
        with pytest.raises(BudgetExhausted) as denied:
            await session.send("go")
        text = str(denied.value)
    else:
        await session.send("go")
        [(_, _, text)] = results(await check_session(session))
    assert time.monotonic() - start < 10
    gate.open()
    assert text.startswith("Budget exhausted on 'budget_guard_timeout': ") and f"check_before_{where}" in text


async def test_G4_an_allow_that_comes_late_is_a_deny(world: World):
    """Judged by the clock read where it ended, however busy the reader was."""
    session = await world.session([reply("never")], budget_guard=Guard(llm=lambda: time.sleep(0.06)), budget_guard_timeout_ms=30)
    for _ in range(3):
        with pytest.raises(BudgetExhausted, match="budget_guard_timeout"):
            await session.send("go")
    assert world.model.requests == []


async def test_G5_it_gets_copies(world: World):
    class Meddler:
        def record_after_llm(self, session_id, usage):
            usage["total_tokens"] = -1
            usage.clear()

    session = await world.session([reply("ok", usage={"prompt_tokens": 7})], budget_guard=Meddler())
    result = await session.send("go")
    assert result.usage.total_tokens == 7
    [run] = await session.runs()
    assert run.usage.total_tokens == 7


@pytest.mark.parametrize("method", ["send", "history", "close", "set_budget_guard", "facts", "cancel"])
async def test_G6_calling_back_into_the_session_raises_in_the_guard(world: World, method: str):
    """Never a deadlock: the call raises there, and so the guard's answer is a deny at once."""
    raised: list[BaseException] = []

    class Caller:
        session: Any = None

        def check_before_llm(self, session_id, tokens):
            arguments = {"send": ("x",), "set_budget_guard": (None,)}.get(method, ())
            try:
                answer = getattr(self.session.raw, method)(*arguments)
                if asyncio.iscoroutine(answer):
                    asyncio.run(answer)
            except BaseException as error:
                raised.append(error)
                raise

    guard = Caller()
    session = await world.session([reply("never"), reply("ok")], budget_guard=guard, budget_guard_timeout_ms=2000)
    guard.session = session
    start = time.monotonic()
    with pytest.raises(ThenceError):
        await session.send("go")
    assert time.monotonic() - start < 10
    assert raised and isinstance(raised[0], ThenceError), "the guard was not refused"
    await session.set_budget_guard(None)
    assert (await session.send("again")).status == "completed"


async def test_G7_threads_past_their_time_out_are_bounded_and_others_are_unaffected(world: World):
    gate = Gate()
    guard = Guard(llm=gate.wait)
    session = await world.session([reply("x")] * 30, budget_guard=guard, budget_guard_timeout_ms=10)
    resources = []
    for _ in range(10):
        with pytest.raises(BudgetExhausted) as denied:
            await session.send("go")
        resources.append(denied.value.resource)
    assert resources == ["budget_guard_timeout"] * 8 + ["budget_guard_unavailable"] * 2
    assert gate.waiting == 8
    other = await world._agents[0].session(".")
    await other.set_budget_guard(Guard(), timeout_ms=5000)
    assert (await other.send("go")).status == "completed"
    # G8: a new guard decides again at once.
    await session.set_budget_guard(Guard())
    assert (await session.send("go")).status == "completed"
    gate.open()


@pytest.mark.parametrize("error", [ValueError("v"), SystemExit(1), KeyboardInterrupt()], ids=lambda e: type(e).__name__)
async def test_G9_a_failing_record_is_ignored(world: World, error: BaseException):
    def fail() -> None:
        raise error

    session = await world.session([reply("ok", usage={"prompt_tokens": 7})], budget_guard=Guard(record=fail))
    result = await session.send("go")
    assert (result.text, result.usage.prompt_tokens) == ("ok", 7)
    assert await hits(session) == []


async def test_G9_a_hung_record_is_ignored_after_its_time_out(world: World):
    gate = Gate()
    session = await world.session([reply("ok", usage={"prompt_tokens": 7})], budget_guard=Guard(record=gate.wait), budget_guard_timeout_ms=50)
    assert (await session.send("go")).text == "ok"
    gate.open()


@pytest.mark.parametrize("value", [0, -1])
async def test_G11_time_outs_are_checked(world: World, value: int):
    session = await world.session([])
    with pytest.raises(SessionConfiguration, match="budget_guard_timeout_ms") as refused:
        await session.set_budget_guard(Guard(), timeout_ms=value)
    assert str(refused.value) == "Invalid session configuration for 'budget_guard_timeout_ms': must be greater than zero"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "5", True, 2**63, 1.5])
async def test_G11_odd_time_outs_are_refused(world: World, value: Any):
    session = await world.session([])
    with pytest.raises((ValueError, TypeError)):
        await session.set_budget_guard(Guard(), timeout_ms=value)


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
    session = await world.session([reply("ok")], budget_guard=Guard(llm=lambda: threads.append(threading.current_thread())))
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
