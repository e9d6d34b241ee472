"""Rounds (§5): what is asked, what runs, what is recorded."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from thence import SessionOptions, ToolContext, tool
from thence.testing import call, reply

from ..kit import Gate, World, check_messages, check_session, kinds, results, stored


def add(a: int, b: int) -> int:
    return a + b


async def test_one_turn_is_these_facts(world: World):
    session = await world.session(
        [reply(calls=[call("add", {"a": 1, "b": 2}), call("add", {"a": 3, "b": 4})]), reply("3 and 7")], [add]
    )
    result = await session.send("add")
    assert (result.text, result.status, result.tool_calls_count) == ("3 and 7", "completed", 2)
    facts = await check_session(session)
    assert kinds(facts) == [
        "run.configured", "user.message", "model.turn", "tool.result", "tool.result", "model.turn", "turn.ended",
    ]  # fmt: skip
    assert results(facts) == [("t1-r1-c0", True, "3"), ("t1-r1-c1", True, "7")]
    assert stored(facts[-1]) == {"status": "completed"}
    # Host input has no cause; everything else names the step that made it (§4).
    assert [fact.cause is None for fact in facts] == [True, True, False, False, False, False, False]


async def test_requests_are_functions_of_the_log(world: World):
    session = await world.session(
        [reply("a"), reply(calls=[call("add", {"a": 1, "b": 1})]), reply("b")],
        [add],
        instructions="Be brief.",
        model_settings={"temperature": 0},
    )
    await session.send("one")
    await session.send("two")
    first, second, third = world.model.requests
    assert [m.role for m in first.messages] == ["user"]
    assert [m.role for m in second.messages] == ["user", "assistant", "user"]
    assert [m.role for m in third.messages] == ["user", "assistant", "user", "assistant", "tool"]
    for request in world.model.requests:
        assert request.instructions == "Be brief."
        assert request.settings == {"temperature": 0}
        assert [spec.name for spec in request.tools] == ["add"]
        check_messages(request.messages)
    # run.configured is written when it changed, and only then.
    assert kinds(await session.facts()).count("run.configured") == 1


async def test_configuration_that_changed_is_recorded_again(world: World):
    agent = await world.agent([reply("a"), reply("b"), reply("c")])
    for instructions in ("x", "x", "y"):
        session = await agent.session(".", SessionOptions(session_id="s", instructions=instructions))
        await session.send("hi")
        await session.close()
    session = await agent.resume_session("s")
    configured = [stored(f) for f in await session.facts() if f.kind == "run.configured"]
    assert [c["instructions"] for c in configured] == ["x", "y"]


async def test_reads_run_together_and_others_alone(world: World):
    spans: list[tuple[str, float, float]] = []
    lock = threading.Lock()

    def span(name: str) -> str:
        start = time.monotonic()
        time.sleep(0.12)
        with lock:
            spans.append((name, start, time.monotonic()))
        return name

    @tool(effect="read")
    def look(name: str) -> str:
        return span(name)

    @tool
    def act(name: str) -> str:
        return span(name)

    order = [("look", "r1"), ("look", "r2"), ("act", "w1"), ("act", "w2"), ("look", "r3"), ("look", "r4")]
    session = await world.session(
        [reply(calls=[call(name, {"name": arg}) for name, arg in order]), reply("done")], [look, act]
    )
    await session.send("go")
    at = {name: (start, end) for name, start, end in spans}

    def together(a: str, b: str) -> bool:
        return at[a][0] < at[b][1] and at[b][0] < at[a][1]

    names = [arg for _, arg in order]
    overlapping = {(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if together(a, b)}
    assert overlapping == {("r1", "r2"), ("r3", "r4")}
    assert [at[a][0] < at[b][0] for a, b in [("r1", "w1"), ("r2", "w1"), ("w1", "w2"), ("w2", "r3")]] == [True] * 4
    assert [text for _, _, text in results(await check_session(session))] == names


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_max_parallel_tools_is_never_passed(world: World, limit: int):
    lock, now, most = threading.Lock(), [0], [0]

    @tool(effect="read")
    def look(n: int) -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.03)
        with lock:
            now[0] -= 1
        return n

    calls = [call("look", {"n": n}) for n in range(6)]
    session = await world.session([reply(calls=calls), reply("ok")], [look], max_parallel_tools=limit)
    await session.send("go")
    assert most[0] == limit
    assert [text for _, _, text in results(await session.facts())] == [str(n) for n in range(6)]


async def test_results_are_facts_in_call_order_whatever_tool_was_faster(world: World):
    @tool(effect="read")
    async def look(ms: int) -> int:
        await asyncio.sleep(ms / 1000)
        return ms

    calls = [call("look", {"ms": ms}) for ms in (120, 60, 0)]
    session = await world.session([reply(calls=calls), reply("ok")], [look])
    result = await session.send("go")
    assert [text for _, _, text in results(await check_session(session))] == ["120", "60", "0"]
    ends = [e.payload["output"] for e in await session.run_events(result.run_id) if e.type == "tool_end"]
    assert ends == ["0", "60", "120"]  # eyes see them as they land


async def test_a_call_is_judged_just_before_its_batch(world: World):
    """§5: judged just before its batch, and a successful non-read call with another signature clears the window. So
    the edit in the same answer frees the test that would have been refused."""
    ran: list[str] = []

    @tool
    def edit(n: int) -> str:
        ran.append(f"edit{n}")
        return "edited"

    @tool(effect="read")
    def check() -> str:
        ran.append("check")
        return "red"

    script = [reply(calls=[call("check")]) for _ in range(3)]
    session = await world.session(
        [*script, reply(calls=[call("edit", {"n": 1}), call("check")]), reply("ok")], [edit, check]
    )
    await session.send("go")
    assert ran == ["check"] * 3 + ["edit1", "check"]


async def test_a_tool_sees_its_call(world: World):
    seen: list[ToolContext] = []

    def look(context: ToolContext, x: int) -> str:
        seen.append(context)
        context.progress("half way")
        return "ok"

    session = await world.session(
        [reply(calls=[call("look", {"x": 1}), call("look", {"x": 2})]), reply("done")], [look], tenant_id="acme"
    )
    result = await session.send("go")
    assert [c.call_key for c in seen] == ["t1-r1-c0", "t1-r1-c1"]
    assert {c.run_id for c in seen} == {result.run_id} and {c.session_id for c in seen} == {session.session_id}
    assert seen[0].tags["tenant_id"] == "acme" and seen[0].tags["principal"] is None
    assert str(seen[0].workspace) == session.workspace
    assert len({c.idempotency_key for c in seen}) == 2 and all(len(c.idempotency_key) == 64 for c in seen)
    spec = world.model.requests[0].tools[0]
    assert list(spec.parameters["properties"]) == ["x"]  # type: ignore[arg-type]


async def test_results_are_durable_as_they_land(world: World):
    """§5.3: the row gets its result as it lands. Another process would see it while a sibling still runs."""
    gate = Gate()

    @tool(effect="read")
    def quick() -> str:
        return "quick"

    @tool(effect="read")
    def slow() -> str:
        gate.wait()
        return "slow"

    session = await world.session([reply(calls=[call("quick"), call("slow")]), reply("ok")], [quick, slow])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    stream_types: list[str] = []
    for _ in range(400):
        run = await session.current_run()
        stream_types = [e.type for e in await session.run_events(run.id)]
        if "tool_end" in stream_types:
            break
        await asyncio.sleep(0.005)
    assert stream_types.count("tool_end") == 1
    assert "tool.result" not in kinds(await session.facts())  # facts come with the settling commit, all at once
    gate.open()
    await task
    assert kinds(await session.facts()).count("tool.result") == 2


async def test_A07_a_provider_call_id_may_repeat(world: World):
    ran: list[tuple[int, int]] = []

    def plus(a: int, b: int) -> int:
        ran.append((a, b))
        return a + b

    session = await world.session(
        [
            reply(calls=[call("plus", {"a": 1, "b": 1}, id="t:0")]),
            reply("2"),
            reply(calls=[call("plus", {"a": 2, "b": 2}, id="t:0"), call("plus", {"a": 3, "b": 3}, id="t:0")]),
            reply("4 and 6"),
        ],
        [plus],
    )
    await session.send("one")
    await session.send("two")
    assert ran == [(1, 1), (2, 2), (3, 3)]
    assert results(await check_session(session)) == [
        ("t1-r1-c0", True, "2"), ("t2-r1-c0", True, "4"), ("t2-r1-c1", True, "6"),
    ]  # fmt: skip


async def test_A05_facts_are_keyed_by_us_not_by_outside_ids(world: World):
    """A result and a later call share the outside id 'm1': both stay, in order."""
    session = await world.session(
        [
            reply(calls=[call("add", {"a": 1, "b": 1}, id="m1")]),
            reply(calls=[call("add", {"a": 2, "b": 2}, id="m1")]),
            reply("ok"),
        ],
        [add],
    )
    await session.send("go")
    facts = await check_session(session)
    about = [fact for fact in facts if fact.key.startswith("t1-r") and fact.kind in ("tool.result", "model.turn")]
    assert [fact.key for fact in about] == ["t1-r1", "t1-r1-c0", "t1-r2", "t1-r2-c0", "t1-r3"]


async def test_hundreds_of_calls_in_one_answer(world: World):
    """L3: bounded, valid, and each call has its result."""

    @tool(effect="read")
    def plus(a: int, b: int) -> int:
        return a + b

    session = await world.session(
        [reply(calls=[call("plus", {"a": n, "b": 0}) for n in range(300)]), reply("ok")], [plus]
    )
    result = await session.send("go")
    assert result.tool_calls_count == 300
    assert [text for _, _, text in results(await check_session(session))] == [str(n) for n in range(300)]


async def test_an_unknown_tool_is_a_failed_result(world: World):
    session = await world.session([reply(calls=[call("nope")]), reply("sorry")], [add])
    result = await session.send("go")
    assert result.status == "completed" and result.tool_calls_count == 0
    [(key, ok, text)] = results(await check_session(session))
    assert (key, ok) == ("t1-r1-c0", False) and "nope" in text
