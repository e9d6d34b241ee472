"""Cases from public reports about guards, limits and what was spent: H01, H02, H04, H05, H07, H09, H10."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from thence import BudgetExhausted, ModelError, RunFailed, SessionNotFound, Usage
from thence.host.guard import stuck_threads
from thence.testing import call, reply

from ..kit import Gate, World, check_session, results, until
from .guard_kit import DENY, Guard, act, hits

USED = {"prompt_tokens": 60, "completion_tokens": 40}


async def test_H01_a_guard_that_hung_once_is_asked_again(world: World):
    """The call that hangs is denied; the next ones are allowed, by the same guard; one thread is left behind."""
    gate, before, threads = Gate(), stuck_threads(), threading.active_count()
    guard = Guard()
    guard.llm = lambda: gate.wait() if len(guard.asked) == 1 else None
    session = await world.session([reply("one"), reply("two"), reply("three")], budget_guard=guard)
    await session.set_budget_guard(guard, 100)
    with pytest.raises(BudgetExhausted, match="budget_guard_timeout"):
        await session.send("1")
    assert stuck_threads() - before == 1
    assert (await session.send("2")).text == "one" and (await session.send("3")).text == "two"
    await session.set_budget_guard(Guard())
    assert (await session.send("4")).text == "three"
    assert stuck_threads() - before == 1 and threading.active_count() - threads < 8
    gate.open()
    await until(lambda: stuck_threads() == before)


H02 = [
    Exception("e"), RuntimeError("r"), MemoryError(), RecursionError(), KeyboardInterrupt(), SystemExit(3),
    GeneratorExit(), StopIteration(), asyncio.CancelledError(),
]  # fmt: skip


async def test_H02_whatever_a_guard_raises_the_tool_does_not_run(world: World):
    ran: list[int] = []

    def pay(n: int) -> None:
        ran.append(n)

    errors = iter(H02)

    def fail() -> None:
        raise next(errors)

    session = await world.session(
        [reply(calls=[call("pay", {"n": n}) for n in range(9)]), reply("alive")], [pay], budget_guard=Guard(tool=fail)
    )
    assert (await session.send("go")).text == "alive"
    assert ran == []
    facts = await check_session(session)
    assert [text.split("'")[1] for _, _, text in results(facts)] == ["budget_guard_callback"] * 9
    assert [(hit["kind"], hit["resource"]) for hit in await hits(session)] == [("hard", "budget_guard_callback")] * 9


async def test_H04_a_hard_limit_holds_also_where_tools_fail(world: World):
    executed: list[int] = []

    def work(n: int) -> str:
        executed.append(n)
        if n % 2:
            raise ValueError("odd")
        return "even"

    guard = Guard()
    guard.tool = lambda: DENY if sum(item[0] == "tool" for item in guard.asked) > 150 else None
    answers = [reply(calls=[call("work", {"n": n}) for n in range(at, at + 50)]) for at in range(0, 600, 50)]
    session = await world.session([*answers, reply("done")], [work], budget_guard=guard)
    assert (await session.send("go")).text == "done"
    assert len(executed) == 150
    said = [text for _, _, text in results(await check_session(session))]
    assert len(said) == 600
    assert said[150:] == ["Budget exhausted on 'tokens': monthly cap reached"] * 450
    assert len(await hits(session)) >= 1 and {hit["kind"] for hit in await hits(session)} == {"hard"}


class Spending:
    """Denies once what it was told of, over all its lives, passes the limit."""

    def __init__(self, limit: int, spent: int = 0) -> None:
        self.limit, self.spent = limit, spent

    def check_before_llm(self, session_id, tokens):
        if self.spent >= self.limit:
            return {"decision": "deny", "resource": "tokens", "reason": "spent"}

    def record_after_llm(self, session_id, usage):
        self.spent += usage["total_tokens"]


async def test_H05_nothing_is_reset_or_counted_twice_when_a_run_goes_on(world: World):
    answers = [reply(calls=[call("act", {"n": n})], usage=USED) for n in range(9)]
    first = Spending(400)
    session = await world.session([*answers, reply("done", usage=USED)], [act], budget_guard=first)
    with pytest.raises(BudgetExhausted) as denied:
        await session.send("go")
    assert (first.spent, (await session.usage()).usage.total_tokens) == (400, 400)
    second = Spending(10_000, first.spent)
    await session.set_budget_guard(second)
    result = await session.resume_run(denied.value.run_id)
    assert result.text == "done" and second.spent == 1000
    usage = await session.usage()
    assert (usage.known, usage.unknown, usage.usage.total_tokens) == (10, 0, 1000)
    assert result.usage.total_tokens == (await session.runs())[-1].usage.total_tokens == 1000


async def test_H07_what_the_log_answers_is_not_charged(world: World):
    guard = Guard()
    answers = [reply(calls=[call("act", {"n": n})], usage=USED) for n in range(4)]
    session = await world.session([*answers, reply("done", usage=USED)], [act], budget_guard=guard)
    result = await session.send("go")
    assert [item[0] for item in guard.asked].count("record") == 5
    guard.asked.clear()
    again = await session.resume_run(result.run_id)
    assert again.replayed and guard.asked == []
    assert (await session.usage()).known == 5


async def test_H07_a_resumed_run_is_charged_for_what_it_asks_alone(world: World):
    guard = Guard()
    answers = [reply(calls=[call("act", {"n": n})], usage=USED) for n in range(3)]
    failed = ModelError("http_400", "no", retryable=False)
    session = await world.session([*answers, failed, reply("done", usage=USED)], [act], budget_guard=guard)
    with pytest.raises(RunFailed) as error:
        await session.send("go")
    assert [item[0] for item in guard.asked].count("record") == 3
    guard.asked.clear()
    await session.resume_run(error.value.run_id)
    assert [item[0] for item in guard.asked] == ["llm", "record"]


async def test_H09_an_unknown_session_has_not_spent_nothing(world: World):
    agent = await world.agent([reply("ok", usage=USED)])
    with pytest.raises(SessionNotFound, match="Session not found: no-such-session"):
        await agent.usage("no-such-session")
    for odd in ("", "  ", 7, None):
        with pytest.raises((ValueError, TypeError)):
            await agent.usage(odd)
    session = await agent.session(".")
    none = await agent.usage(session.session_id)
    assert (none.known, none.unknown, none.usage) == (0, 0, Usage())
    await session.send("go")
    used = await agent.usage(session.session_id)
    assert used == await session.usage()
    assert used.to_dict() == {
        "session_id": session.session_id, "known": 1, "unknown": 0,
        "usage": {
            "prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100, "cache_read_tokens": 0,
            "cache_write_tokens": 0,
        },
    }  # fmt: skip


async def test_H10_requests_of_unknown_cost_are_counted_apart(world: World):
    """Ten answers, three without usage, and two attempts that failed: 7 known, 5 unknown, never 0."""
    guard = Guard()
    broken = ModelError("stream_broken", "cut", retryable=True)
    script: list[Any] = []
    for n in range(9):
        if n in (2, 6):
            script.append(broken)
        script.append(reply(calls=[call("act", {"n": n})], usage=None if n in (1, 4, 7) else USED))
    session = await world.session([*script, reply("done", usage=USED)], [act], budget_guard=guard, retry_base_ms=1)
    result = await session.send("go")
    usage = await session.usage()
    assert (usage.known, usage.unknown, usage.usage.total_tokens) == (7, 5, 700)
    assert (result.usage.total_tokens, (await session.runs())[-1].requests_without_usage) == (700, 5)
    estimates = [item[2] for item in guard.asked if item[0] == "llm"]
    assert len(estimates) == 12 and all(type(one) is int and one > 0 for one in estimates)
    assert [item[0] for item in guard.asked].count("record") == 7


async def test_H10_over_failed_and_resumed_runs_and_evicted_ones(world: World):
    fatal = ModelError("http_400", "no", retryable=False)
    script = [
        reply(calls=[call("act")]), fatal,  # fails: 1 answer without usage, 1 failed attempt
        fatal,  # resumed, and fails at once: 1 failed attempt
        reply("done", usage=USED),
        reply("silent"),
        *[reply("more", usage=USED)] * 3,
    ]  # fmt: skip
    session = await world.session(script, [act])
    with pytest.raises(RunFailed) as error:
        await session.send("go")
    assert (await session.usage()).unknown == 2
    with pytest.raises(RunFailed):
        await session.resume_run(error.value.run_id)
    await session.resume_run(error.value.run_id)
    await session.send("again")
    usage = await session.usage()
    assert (usage.known, usage.unknown, usage.usage.total_tokens) == (1, 4, 100)
    await session.set_retention({"max_runs_retained": 1})
    for _ in range(3):
        await session.send("more")
    # The rows of the failed runs are gone, and what only they knew; what answers said stays for ever.
    usage = await session.usage()
    assert (usage.known, usage.unknown, usage.usage.total_tokens) == (4, 2, 400)


async def test_the_estimate_is_a_quarter_of_the_requests_bytes(world: World):
    asked: list[int] = []
    for tools, instructions, prompt in (([], "", "x"), ([], "é" * 400, "x"), ([act], "", "x"), ([], "", "y" * 4000)):
        guard = Guard()
        session = await world.session([reply("ok")], tools, budget_guard=guard, instructions=instructions)
        await session.send(prompt)
        asked.append(guard.asked[0][2])
        await session.close()
    plain, instructed, tooled, long = asked
    assert plain >= 1 and 199 <= instructed - plain <= 201 and 999 <= long - plain <= 1001
    assert 20 < tooled - plain < 200
