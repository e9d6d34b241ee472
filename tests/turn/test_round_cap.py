"""The round cap (§5): after N rounds an empty tool list, no closing message, and calls that come anyway are denied."""

from __future__ import annotations

import itertools

import pytest

from thence.testing import call, reply

from ..kit import World, check_session, kinds, results, stored


def step(n: int) -> int:
    return n


def one(n: int, text: str = ""):
    return reply(text, calls=[call("step", {"n": n})])


def offered(world: World) -> list[list[str]]:
    return [[spec.name for spec in request.tools] for request in world.model.requests]


@pytest.mark.parametrize("cap", [1, 2, 4])
async def test_after_the_cap_the_list_is_empty(world: World, cap: int):
    session = await world.session([*(one(n) for n in range(cap)), reply("done")], [step], max_tool_rounds=cap)
    result = await session.send("go")
    assert (result.text, result.status, result.tool_calls_count) == ("done", "completed", cap)
    assert offered(world) == [["step"]] * cap + [[]]
    # No closing message is injected: the last request ends with the tool's result.
    last = world.model.requests[-1].messages
    assert [m.role for m in last] == ["user", *["assistant", "tool"] * cap]


async def test_a_call_made_all_the_same_is_denied_and_the_run_completes(world: World):
    ran: list[int] = []

    def count(n: int) -> int:
        ran.append(n)
        return n

    answer = reply("I stop here.", calls=[call("count", {"n": 1}), call("count", {"n": 2})])
    session = await world.session(
        [reply(calls=[call("count", {"n": 0})]), answer, reply("next")], [count], max_tool_rounds=1
    )
    result = await session.send("go")
    assert (result.status, result.text, result.tool_calls_count, ran) == ("completed", "I stop here.", 1, [0])
    facts = await check_session(session)
    denied = [stored(f) for f in facts if f.kind == "budget.denied"]
    assert [d["call_key"] for d in denied] == ["t1-r2-c0", "t1-r2-c1"]
    assert {d["scope"] for d in denied} == {"round_cap"}
    assert kinds(facts)[-1] == "turn.ended" and stored(facts[-1]) == {"status": "completed"}
    # Providers are shown a failed result, and the next turn offers tools again.
    await session.send("again")
    shown = [m for m in world.model.requests[-1].messages if m.role == "tool"]
    assert [m.ok for m in shown] == [True, False, False]
    assert offered(world) == [["count"], [], ["count"]]


async def test_a_denied_call_does_not_start(world: World):
    session = await world.session([one(0), one(1, "text")], [step], max_tool_rounds=1)
    result = await session.send("go")
    events = await session.run_events(result.run_id)
    started = [e.payload["id"] for e in events if e.type == "tool_execution_start"]
    assert started == ["t1-r1-c0"]
    assert [e.payload["id"] for e in events if e.type == "tool_end"] == ["t1-r1-c0", "t1-r2-c0"]


async def test_the_cap_holds_for_continuations_too(world: World):
    session = await world.session(
        [one(0), reply("half", stop_reason="length"), reply("other half")], [step], max_tool_rounds=1
    )
    result = await session.send("go")
    assert result.text == "other half"
    assert offered(world) == [["step"], [], []]


async def test_a_round_of_refused_calls_counts(world: World):
    """A round is one answer with calls and all their results, refused ones included (§0)."""
    session = await world.session([reply(calls=[call("nope")]), one(1), reply("end")], [step], max_tool_rounds=2)
    await session.send("go")
    assert offered(world) == [["step"], ["step"], []]


async def test_the_cap_is_per_turn(world: World):
    session = await world.session([one(0), reply("a"), one(1), reply("b")], [step], max_tool_rounds=1)
    await session.send("1")
    await session.send("2")
    assert offered(world) == [["step"], [], ["step"], []]


async def test_the_default_cap_is_fifty(world: World):
    numbers = itertools.count()
    session = await world.session(itertools.repeat(lambda request: one(next(numbers), "text")), [step])
    result = await session.send("go")
    assert len(world.model.requests) == 51 and result.tool_calls_count == 50
    assert offered(world) == [["step"]] * 50 + [[]]
    assert results(await check_session(session))[-1][1] is False
