"""Where features meet at a wait (§1, §3, §6, §7, §8, §10): what somebody said counts, whoever is asked afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from thence import (
    BudgetExhausted,
    Defer,
    Hook,
    ModelError,
    PermissionPolicy,
    Question,
    RunInterrupted,
    SessionBusy,
    SessionConfiguration,
    SessionOptions,
    ToolContext,
    tool,
)
from thence.session_options import WITHOUT

from ..hooks.hook_kit import Told
from ..kit import Gate, World, check_session, results, until
from ..resume.hand import by_hand, dies_at
from ..resume.kit import Again, Tools, calls, done, last_run
from ..turn.guard_kit import DENY, Guard
from .kit import C0, C1, MS, NOT_IN_TIME, Desk, Plain, asks, ended_well, events_of, ids

W = f"{C0}-w1"
BLOCK = {"decision": "block", "reason": "not now"}
HOLD = {"decision": "hold", "resource": "tokens", "reason": "ask the boss"}


def handing_over(ran: list[str]) -> list[Any]:
    """Tools whose result is told by somebody."""

    @tool
    def build(n: int, context: ToolContext) -> str:
        ran.append(context.call_key)
        raise Defer(f"build {n}", deadline_ms=MS + 1_000)

    @tool
    def ask(n: int, context: ToolContext) -> str:
        ran.append(context.call_key)
        raise Question(f"Which one, {n}?", deadline_ms=MS + 1_000)

    return [build, ask]


# ------------------------------------------------------------------ a no stays a no


@pytest.mark.parametrize("said", ["no", "nothing in time"])
@pytest.mark.parametrize(
    "policy", [WITHOUT, PermissionPolicy(), PermissionPolicy(allow=("put",))], ids=["none", "other", "an allowing one"]
)
async def test_a_no_stays_a_no_under_another_policy_or_none(desk, policy: Any, said: str):
    """§10: rejected, or not confirmed before the deadline, the call does not run; the host's policy of later is for
    later calls."""
    here: Desk = desk([calls("put:0"), done()], permission_policy=asks("put", timeout_ms=1_000))
    session, result = await here.parked()
    if said == "no":
        await session.confirm(C0, False, "never", by="ann")
    else:
        here.later(1_001)
    session = await here.reopen(permission_policy=policy)
    assert (await session.resume_run(result.run_id)).status == "completed"
    text = "Error: rejected by ann: never" if said == "no" else NOT_IN_TIME
    assert results(await ended_well(session, result.run_id)) == [(C0, False, text)]
    assert here.effects.ran == []


# ------------------------------------------------------------------ what somebody told comes first


def against() -> dict[str, Any]:
    """Hosts that are against running any call."""
    return {
        "a hook": {"hooks": [Hook("pre_tool_use", lambda context: BLOCK)]},
        "the policy": {"permission_policy": PermissionPolicy(deny=("*",))},
        "the guard": {"budget_guard": Guard(tool=DENY)},
        "a hook that fails": {"hooks": [Hook("pre_tool_use", lambda context: 1 / 0)]},
    }


@pytest.mark.parametrize("who", list(against()))
@pytest.mark.parametrize("name", ["build", "ask"])
async def test_what_was_told_of_a_call_comes_before_whoever_is_against_it(desk, name: str, who: str):
    """§10: a deferred call ran, and its answer is its result: nobody is asked whether it may run."""
    ran: list[str] = []
    here: Desk = desk([calls(f"{name}:0"), done()], tools=handing_over(ran))
    session, result = await here.parked()
    await session.answer(W, {"tracking": 42})
    session = await here.reopen(**against()[who])
    assert (await session.resume_run(result.run_id)).status == "completed"
    assert results(await ended_well(session, result.run_id)) == [(C0, True, '{"tracking":42}')] and ran == [C0]


async def test_hooks_are_asked_about_a_deferred_call_once(desk):
    """§10: before it ran, and not again when its answer is there; the yes of then is not taken back."""
    ran: list[str] = []
    said = iter([None])
    hook = Told(lambda context: next(said, BLOCK))
    here: Desk = desk([calls("build:0"), done()], tools=handing_over(ran), hooks=[Hook("pre_tool_use", hook)])
    session, result = await here.parked()
    await session.answer(W, "built")
    assert (await session.resume_run(result.run_id)).status == "completed"
    assert results(await ended_well(session, result.run_id)) == [(C0, True, "built")]
    assert hook.keys == [C0] and ran == [C0]


@pytest.mark.parametrize("who", list(against()))
async def test_a_started_once_call_is_asked_about_whoever_is_against_it(world: World, who: str):
    """§7: it may have happened; a block now must not be recorded as if it had not run. Told, that is its result."""
    script, before, after = [calls("charge:5", "add:2"), done()], Tools(), Tools()
    by_hand(world.db, script, wrap=dies_at("inflight_land", when="before"), tools=before)
    agent = await world.agent(model=Again(script), tools=after.all(), durability="process")
    session = await agent.resume_session("s", SessionOptions(**against()[who]))
    result = await session.resume_run(last_run(world.db))
    assert (result.status, ids(result), result.waits[0].kind) == ("parked", [W], "unknown_outcome")
    await session.answer(W, {"outcome": "done", "result": "paid 5"})
    assert (await session.resume_run(result.run_id)).status == "completed"
    first, second = results(await check_session(session))
    assert first == (C0, True, "paid 5") and second[:2] == (C1, False)
    assert (before.keys(), after.keys()) == ([C0], [])


@pytest.mark.parametrize("name", ["build", "ask"])
async def test_an_answer_is_the_result_on_a_host_without_that_tool(desk, name: str):
    """§10: whoever goes on need not have the tool: it runs no more. A call without an answer is unknown as ever."""
    ran: list[str] = []
    here: Desk = desk([calls(f"{name}:0", f"{name}:1"), done()], tools=handing_over(ran))
    session, result = await here.parked()
    here.tools = []
    session = await here.reopen()
    await session.answer(W, "arrived")
    assert (await session.resume_run(result.run_id)).status == "completed"
    first, (key, ok, text) = results(await ended_well(session, result.run_id))
    assert first == (C0, True, "arrived") and (key, ok) == (C1, False) and name in text
    assert ran == [C0]


@pytest.mark.parametrize("name", ["build", "ask"])
@pytest.mark.parametrize("in_time", [True, False], ids=["answered", "too late"])
async def test_the_tool_end_of_a_told_call_says_whether_it_went_well(desk, name: str, in_time: bool):
    """§8: `exit_code` 0 with an answer; anything else when nobody answered in time."""
    here: Desk = desk([calls(f"{name}:0"), done()], tools=handing_over([]))
    session, result = await here.parked()
    if in_time:
        await session.answer(W, "arrived")
    else:
        here.later(1_001)
    await session.resume_run(result.run_id)
    [event] = await events_of(session, result.run_id, "tool_end")
    assert (event["id"], event["name"], event["exit_code"] == 0) == (C0, name, in_time)
    assert (event["output"] == "arrived") is in_time


@pytest.mark.parametrize("restart", [False, True], ids=["same agent", "restart"])
async def test_settling_uses_an_answer_that_is_a_fact(desk, restart: bool):
    """§7 settle, §10: what was answered before the run was interrupted is the call's result, not "not run"."""
    gate = Gate()
    here: Desk = desk([calls("build:0", "put:1"), done(), done("More.")], tools=handing_over([]))
    here.effects.on["put"] = lambda key: gate.wait()
    session, result = await here.parked()
    await session.answer(W, {"tracking": 7})
    task = asyncio.ensure_future(session.resume_run(result.run_id))
    await gate.came()
    await session.interrupt("enough")
    gate.open()
    with pytest.raises(RunInterrupted):
        await task
    if restart:
        session = await here.reopen()
    assert (await session.send("Next.", on_interrupted="settle")).status == "completed"
    found = results(await check_session(session))
    assert found[0] == (C0, True, '{"tracking":7}') and [key for key, _, _ in found] == [C0, C1]


# ------------------------------------------------------------------ budget holds and what a parked run keeps


@pytest.mark.parametrize("restart", [False, True], ids=["same agent", "restart"])
async def test_the_newest_hold_alone_counts(desk, restart: bool):
    """§6: a yes is for one attempt; after a later no it lets no request through, and the guard is asked anew."""
    guard = Guard(llm=HOLD)
    down = ModelError("down", "down", retryable=True)
    here: Desk = desk([(down, done())], budget_guard=guard, retry_base_ms=1)
    session, result = await here.parked()
    await session.answer("t1-r1-w1", True)
    again = await session.resume_run(result.run_id)
    assert (again.status, ids(again), len(here.model.requests)) == ("parked", ["t1-r1-w2"], 1)
    await session.answer("t1-r1-w2", {"approved": False, "reason": "stop spending"})
    with pytest.raises(BudgetExhausted, match="stop spending"):
        await session.resume_run(result.run_id)
    here.script = [done()]
    if restart:
        session = await here.reopen()
    made, asked = len(here.model.requests), len(guard.asked)
    last = await session.resume_run(result.run_id)
    assert (last.status, ids(last)) == ("parked", ["t1-r1-w3"])
    assert (len(here.model.requests), len(guard.asked)) == (made, asked + 1)


async def test_requests_of_unknown_usage_are_counted_while_parked_and_after(desk):
    """§6, §10: a failed attempt is not forgotten because the run has parked, in whatever process it goes on."""
    down = ModelError("down", "down", retryable=True)
    here: Desk = desk([(down, calls("put:0")), done()], permission_policy=asks("put"), retry_base_ms=1)
    session, result = await here.parked()
    assert (await session.run_snapshot(result.run_id)).requests_without_usage == 1
    session = await here.reopen()
    await session.confirm(C0, True)
    await session.resume_run(result.run_id)
    assert (await session.run_snapshot(result.run_id)).requests_without_usage == 1
    assert (await session.usage()).unknown == 1
    await ended_well(session, result.run_id)


@pytest.mark.parametrize("what", ["budget_guard", "hooks"])
async def test_what_was_installed_after_the_opening_is_recorded_when_a_parked_run_goes_on(desk, what: str):
    """§3, §6: whoever resumes the session later must give a guard and hooks again, or say so."""
    here: Desk = desk([calls("put:0"), done()], permission_policy=asks("put"))
    session, result = await here.parked()
    await session.confirm(C0, True)
    if what == "budget_guard":
        await session.set_budget_guard(Guard())
    else:
        await session.register_hook("run_end", Told())
    assert (await session.resume_run(result.run_id)).status == "completed"
    with pytest.raises(SessionConfiguration, match=what):
        await here.reopen()


# ------------------------------------------------------------------ the earlier run parks


async def test_resuming_on_the_way_to_a_send_may_park(desk):
    """§1, §7: the earlier run is not what was sent: SessionBusy names what it waits for, and the prompt is not lost."""
    gate = Gate()
    here: Desk = desk([calls("look:0"), calls("put:1"), done(), done("Second.")], permission_policy=asks("put"))
    here.effects.on["look"] = lambda key: gate.wait()
    session = await here.open()
    task = asyncio.ensure_future(session.send("First."))
    await gate.came()
    await session.interrupt()
    gate.open()
    with pytest.raises(RunInterrupted):
        await task
    with pytest.raises(SessionBusy) as busy:
        await session.send("Second.", run_id="mine", on_interrupted="resume")
    assert ids(busy.value) == ["t1-r2-c0-w1"] and "t1-r2-c0-w1" in str(busy.value)
    parked = (await session.runs())[-1]
    assert (parked.status, parked.id) == ("parked", busy.value.run_id) and parked.id != "mine"
    await session.confirm("t1-r2-c0", True)
    assert (await session.resume_run(parked.id)).text == "Done."
    again = await session.send("Second.", run_id="mine")
    assert (again.text, again.run_id, again.replayed) == ("Second.", "mine", False)
    await check_session(session)


# ------------------------------------------------------------------ a hook after the end


async def test_a_slow_hook_after_the_end_takes_nothing_of_the_next_operation(desk):
    """§1, §8: the session is free once the run has ended: what comes in then is for whoever has it, and the send that
    completed says so."""
    after, at_work = Gate(), Gate()
    here: Desk = desk([done("One."), calls("look:0"), done("Two.")])
    here.effects.on["look"] = lambda key: at_work.wait()
    first = await here.open(hooks=[Hook("run_end", lambda context: after.wait())])
    one = asyncio.ensure_future(first.send("First."))
    await after.came()
    second = await here.open(hooks=[Hook("run_end", Told())])
    two = asyncio.ensure_future(second.send("Second."))
    await at_work.came()
    # both look into the inbox four times a second, if they look at all
    for n in range(40):
        with Plain(here.db) as plain:
            said = "INSERT INTO event_in(run_id, type, payload, request_id) SELECT run_id, ?, ?, ? FROM runs"
            plain.db.execute(f"{said} WHERE state = 'executing'", ("host.note", f'{{"n":{n}}}', f"q{n}"))
        await asyncio.sleep(0.015)
    after.open()
    assert ((await one).status, (await one).text) == ("completed", "One.")
    with Plain(here.db) as plain:
        await until(lambda: plain.one("SELECT count(*) FROM inbox") == 0)
    at_work.open()
    result = await two
    assert (result.status, result.text) == ("completed", "Two.")
    assert [note["n"] for note in await events_of(second, result.run_id, "host.note")] == list(range(40))
    await check_session(second)
