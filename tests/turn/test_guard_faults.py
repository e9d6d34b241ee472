"""A budget guard that lies, raises, hangs or calls back (§6, G1-G11): everything unclear is a deny."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from thence import BudgetExhausted, SessionConfiguration, ThenceError
from thence.testing import call, reply

from ..kit import Gate, World, check_session, results, until
from .guard_kit import SOFT, Guard, act, hits


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


@pytest.mark.parametrize(
    "make", [coroutine, cyclic, lambda: iter([].__iter__, 1)], ids=["coroutine", "cyclic", "generator"]
)
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
    session = await world.session(
        [reply(calls=[call("act")]), reply("ok")], [act], budget_guard=guard, budget_guard_timeout_ms=80
    )
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


async def test_G4_an_allow_that_comes_late_is_a_deny_however_busy_the_reader_was(world: World):
    """Judged by the monotonic clock read where it ended: here nobody looks at the answer until it is long there."""
    guard = Guard(llm=lambda: time.sleep(0.1))
    session = await world.session([reply("never")], budget_guard=guard, budget_guard_timeout_ms=50)
    task = asyncio.ensure_future(session.send("go"))
    await until(lambda: guard.asked)
    time.sleep(0.3)  # noqa: ASYNC251  the async face's loop stands still on purpose
    with pytest.raises(BudgetExhausted, match="budget_guard_timeout"):
        await task
    assert world.model.requests == []


async def test_G12_a_guard_that_holds_the_interpreter_past_its_time_is_a_deny(world: World):
    session = await world.session(
        [reply("never")], budget_guard=Guard(llm=lambda: sum(range(3_000_000)) and None), budget_guard_timeout_ms=5
    )
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
    session = await world.session(
        [reply("ok", usage={"prompt_tokens": 7})], budget_guard=Guard(record=gate.wait), budget_guard_timeout_ms=50
    )
    assert (await session.send("go")).text == "ok"
    gate.open()


@pytest.mark.parametrize("value", [0, -1])
async def test_G11_time_outs_are_checked(world: World, value: int):
    session = await world.session([])
    with pytest.raises(SessionConfiguration, match="budget_guard_timeout_ms") as refused:
        await session.set_budget_guard(Guard(), timeout_ms=value)
    assert (
        str(refused.value) == "Invalid session configuration for 'budget_guard_timeout_ms': must be greater than zero"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "5", True, 2**63, 1.5])
async def test_G11_odd_time_outs_are_refused(world: World, value: Any):
    session = await world.session([])
    with pytest.raises((ValueError, TypeError)):
        await session.set_budget_guard(Guard(), timeout_ms=value)
