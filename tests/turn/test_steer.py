"""``steer``: what others say to a live run becomes a message of its turn, at a safe point, once (§1, §4, §8)."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest

from thence import SessionClosed, SessionOptions
from thence.testing import call, reply

from ..kit import Both, Gate, World, check_session, kinds, stored, types, until
from .guard_kit import Guard


def steers(facts: list[Any]) -> list[tuple[str, str, str | None]]:
    """(key, text, request id) of the messages that were said to a run."""
    found = []
    for fact in facts:
        payload = stored(fact)
        if fact.kind == "user.message" and payload["origin"] == "steer":
            found.append((fact.key, payload["parts"][0]["text"], payload.get("request_id")))
    return found


async def applied(session: Both) -> list[dict[str, Any]]:
    [run] = (await session.runs())[-1:]
    return [dict(e.payload) for e in await session.run_events(run.id) if e.type == "run_control_applied"]


def waiting(world: World) -> int:
    db = sqlite3.connect(world.db)
    (count,) = db.execute("SELECT count(*) FROM inbox").fetchone()
    db.close()
    return int(count)


async def test_while_a_tool_runs_it_waits_for_the_next_request(world: World):
    gate = Gate()

    def slow() -> str:
        gate.wait()
        return "ok"

    session = await world.session([reply(calls=[call("slow"), call("slow", {})]), reply("done")], [slow])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    assert await session.steer("Be brief.", "q1") is True
    await asyncio.sleep(0.3)  # a poll of the inbox passes by: calls are open, so it must wait
    assert kinds(await session.facts())[-1] == "model.turn"
    gate.open()
    assert (await task).text == "done"
    facts = await check_session(session)
    assert kinds(facts) == [
        "run.configured", "user.message", "model.turn", "tool.result", "tool.result", "user.message", "model.turn",
        "turn.ended",
    ]  # fmt: skip
    assert steers(facts) == [("t1-steer1", "Be brief.", "q1")]
    assert [fact.cause for fact in facts if fact.key == "t1-steer1"] == [None]
    assert [m.role for m in world.model.requests[1].messages] == ["user", "assistant", "tool", "tool", "user"]
    assert world.model.requests[1].messages[-1].text == "Be brief."
    assert await applied(session) == [
        {"request_id": "q1", "operation": "steer", "turn_id": "t1", "turn_revision": 1, "input": "Be brief."}
    ]
    assert waiting(world) == 0


async def test_an_answered_turn_is_asked_again(world: World):
    gate = Gate()

    async def answer(request):
        await gate.await_()
        return reply("first", usage={"prompt_tokens": 5})

    session = await world.session([answer, reply("second", usage={"prompt_tokens": 7})])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    assert await session.steer("No, the other one.")
    gate.open()
    result = await task
    assert (result.text, result.usage.prompt_tokens) == ("second", 12)
    facts = await check_session(session)
    assert kinds(facts)[1:] == ["user.message", "model.turn", "user.message", "model.turn", "turn.ended"]
    assert [m.text for m in world.model.requests[1].messages] == ["go", "first", "No, the other one."]
    assert (await applied(session))[0]["request_id"] is None


async def test_after_the_round_cap_it_is_answered_without_tools(world: World):
    gate = Gate()

    def act() -> str:
        gate.wait()
        return "ok"

    session = await world.session(
        [reply(calls=[call("act")]), reply("capped", calls=[call("act")]), reply("end")], [act], max_tool_rounds=1
    )
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    await session.steer("more")
    gate.open()
    assert (await task).text == "capped"
    assert [len(request.tools) for request in world.model.requests] == [1, 0]


async def test_a_known_request_is_ignored(world: World):
    gate = Gate()

    async def answer(request):
        await gate.await_()
        return reply("first")

    session = await world.session([answer, reply("second"), reply("third")])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    assert [await session.steer("Once.", "q"), await session.steer("Twice?", "q")] == [True, True]
    gate.open()
    assert (await task).text == "second"
    assert steers(await check_session(session)) == [("t1-steer1", "Once.", "q")]


async def test_a_request_that_the_log_holds_is_ignored_when_the_inbox_has_forgotten_it(world: World):
    first, second = Gate(), Gate()

    async def hold(request):
        await first.await_()
        return reply(calls=[call("slow")])

    async def slow() -> str:
        await second.await_()
        return "ok"

    session = await world.session([hold, reply("end"), reply("never")], [slow])
    task = asyncio.ensure_future(session.send("go"))
    await first.came()
    await session.steer("Said.", "q")
    first.open()
    await second.came()
    # it came while the model answered with calls, and waits for their results
    assert steers(await session.facts()) == []
    second.open()
    await task
    assert len(steers(await session.facts())) == 1
    third = Gate()

    async def hold_again(request):
        await third.await_()
        return reply("two")

    agent = await world.agent([hold_again, reply("never asked")], tools=[slow])
    db = sqlite3.connect(world.db, isolation_level=None)
    db.execute("DELETE FROM request")
    db.close()
    again = await agent.resume_session(session.session_id)
    task = asyncio.ensure_future(again.send("once more"))
    await third.came()
    assert await again.steer("Said.", "q") is True
    third.open()
    assert (await task).text == "two"
    assert len(steers(await check_session(again))) == 1 and waiting(world) == 0


async def test_nothing_is_kept_when_no_run_is_live(world: World):
    session = await world.session([reply("one"), reply("two")])
    assert await session.steer("hello") is False
    await session.send("go")
    assert await session.steer("hello", "q") is False
    assert waiting(world) == 0
    assert (await session.send("again")).text == "two"
    assert steers(await check_session(session)) == []


async def test_many_more_than_a_page_come_in_order(world: World):
    gate = Gate()

    def slow() -> str:
        gate.wait()
        return "ok"

    session = await world.session([reply(calls=[call("slow")]), reply("done")], [slow])
    model = world.model
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    count = 300
    for number in range(count):
        assert await session.steer(f"m{number}", f"q{number}")
    # an order behind them is seen all the same
    other = await (await world.agent([])).resume_session(session.session_id)
    await other.emit({"type": "note", "payload": {}})
    [run] = await session.runs()
    for _ in range(2000):
        if "note" in types(await session.run_events(run.id)):
            break
        await asyncio.sleep(0.005)
    else:
        raise AssertionError("what waits behind the messages was not seen")
    gate.open()
    assert (await task).text == "done"
    facts = await check_session(session)
    assert steers(facts) == [(f"t1-steer{n + 1}", f"m{n}", f"q{n}") for n in range(count)]
    assert len(model.requests) == 2 and len(model.requests[1].messages) == 3 + count
    assert [e["turn_revision"] for e in await applied(session)] == list(range(1, count + 1))


async def test_it_is_in_the_estimate_that_the_guard_is_asked_with(world: World):
    gate, guard = Gate(), Guard()

    def slow() -> str:
        gate.wait()
        return "ok"

    session = await world.session([reply(calls=[call("slow")]), reply("done")], [slow], budget_guard=guard)
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    await session.steer("x" * 4000)
    gate.open()
    await task
    first, second = [item[2] for item in guard.asked if item[0] == "llm"]
    assert second - first >= 1000


@pytest.mark.parametrize("stop", ["interrupt", "cancel"])
async def test_an_interrupted_turn_reads_it_when_it_is_resumed_and_a_cancelled_one_never(world: World, stop: str):
    gate = Gate()

    def slow() -> str:
        gate.wait()
        return "ok"

    session = await world.session([reply(calls=[call("slow")]), reply("resumed"), reply("next")], [slow])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    await session.steer("Mind the gap.", "q")
    await getattr(session, stop)()
    gate.open()
    answer: Any = (await asyncio.gather(task, return_exceptions=True))[0]
    if stop == "interrupt":
        assert answer.code == "RUN_INTERRUPTED"
        result = await session.resume_run(answer.run_id)
        assert result.text == "resumed"
        assert steers(await check_session(session)) == [("t1-steer1", "Mind the gap.", "q")]
    else:
        assert answer.status == "cancelled"
        assert steers(await check_session(session)) == []
    assert waiting(world) == 0


async def test_a_settled_turn_takes_its_messages_with_it(world: World):
    gate = Gate()

    def slow() -> str:
        gate.wait()
        return "ok"

    session = await world.session([reply(calls=[call("slow")]), reply("next")], [slow])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    await session.steer("For that turn.")
    await session.interrupt()
    gate.open()
    await asyncio.gather(task, return_exceptions=True)
    assert waiting(world) == 1
    assert (await session.send("Something else.", on_interrupted="settle")).text == "next"
    assert steers(await check_session(session)) == [] and waiting(world) == 0


@pytest.mark.parametrize("text", ["", "  \n", "a\ud800", "x" * (16 * 1024 * 1024 + 1), None, 7, b"x"])
async def test_what_cannot_be_said_is_refused(world: World, text: Any):
    session = await world.session([])
    with pytest.raises((ValueError, TypeError), match="text"):
        await session.steer(text)


@pytest.mark.parametrize("request_id", ["", " ", "\ud800", 7, "a\nb"])
async def test_a_bad_request_id_is_refused(world: World, request_id: Any):
    session = await world.session([])
    with pytest.raises((ValueError, TypeError), match="request_id"):
        await session.steer("x", request_id)


async def test_the_largest_message_is_read_whole(world: World):
    gate = Gate()

    async def answer(request):
        await gate.await_()
        return reply("first")

    session = await world.session([answer, reply("second")])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    text = "é" * (8 * 1024 * 1024)
    assert await session.steer(text)
    gate.open()
    assert (await task).text == "second"
    assert world.model.requests[1].messages[-1].text == text


async def test_a_closed_session_is_refused(world: World):
    session = await world.session([])
    await session.close()
    with pytest.raises(SessionClosed):
        await session.steer("x")


async def test_steering_again_and_again_after_answers(world: World):
    gates = [Gate() for _ in range(4)]

    def answer(number: int):
        async def hold(request):
            await gates[number].await_()
            return reply(f"a{number}")

        return hold

    session = await world.session([answer(n) for n in range(4)])
    task = asyncio.ensure_future(session.send("go"))
    for number, gate in enumerate(gates):
        await gate.came()
        if number < 3:
            await session.steer(f"s{number}")
        gate.open()
    assert (await task).text == "a3"
    assert [m.text for m in world.model.requests[3].messages] == ["go", "a0", "s0", "a1", "s1", "a2", "s2"]


async def test_another_face_and_agent_may_steer(world: World):
    gate = Gate()

    async def answer(request):
        await gate.await_()
        return reply("first")

    session = await world.session([answer, reply("second")])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    other = await (await world.agent([])).resume_session(session.session_id, SessionOptions())
    assert await other.steer("From elsewhere.", "q")
    gate.open()
    assert (await task).text == "second"
    assert steers(await check_session(session)) == [("t1-steer1", "From elsewhere.", "q")]
    await until(lambda: waiting(world) == 0)
