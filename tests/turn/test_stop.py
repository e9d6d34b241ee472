"""Cancel and interrupt at every phase (§1, §4): the history stays valid, cancel is final, interrupt is not."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from thence import ModelError, RunInterrupted, SessionOptions, ToolContext, tool
from thence.testing import call, reply

from ..kit import Both, Gate, World, check_messages, check_session, kinds, results, stored, types, until

ALLOWS = SimpleNamespace(check_before_llm=None)


class Phases:
    """One turn that can be held at each of its phases. ``hold`` names the phase."""

    def __init__(self, hold: str) -> None:
        self.hold, self.gate = hold, Gate()

    async def model(self, request: Any):
        if self.hold == "model":
            await self.gate.await_()
        if self.hold == "backoff" and not self.gate.waiting:
            self.gate.waiting = 1
            raise ModelError("http_503", "503", retryable=True)
        return reply("looking", calls=[call("look", {"n": 1}), call("look", {"n": 2}), call("act"), call("act2")])

    async def second(self, request: Any):
        if self.hold == "second model":
            await self.gate.await_()
        return reply("done")

    def tools(self) -> list[Any]:
        def wait(context: ToolContext) -> None:
            self.gate.waiting += 1
            end = time.monotonic() + 20
            while not context.cancelled and time.monotonic() < end:
                time.sleep(0.002)

        @tool(effect="read")
        def look(n: int, context: ToolContext) -> str:
            if self.hold == "read" and n == 2:
                wait(context)
            return f"saw {n}"

        @tool
        def act(context: ToolContext) -> str:
            if self.hold == "tool":
                wait(context)
            return "acted"

        @tool
        async def act2() -> str:
            if self.hold == "async tool":
                await self.gate.await_()
            return "acted too"

        return [look, act, act2]

    def check_before_llm(self, session_id: str, tokens: int) -> None:
        if self.hold == "guard":
            self.gate.wait()

    def check_before_tool(self, session_id: str, name: str) -> None:
        if self.hold == "tool guard" and name == "act":
            self.gate.wait()


PHASES = ["model", "backoff", "read", "tool", "async tool", "second model", "guard", "tool guard"]


async def held(world: World, hold: str, **options: Any) -> tuple[Both, Phases, asyncio.Future[Any]]:
    """A session whose turn stands at the phase ``hold``."""
    phases = Phases(hold)
    session = await world.session(
        [phases.model, *([phases.model] if hold == "backoff" else []), phases.second, reply("next")],
        phases.tools(), budget_guard=phases, budget_guard_timeout_ms=1500, retry_base_ms=30_000, **options,
    )  # fmt: skip
    task = asyncio.ensure_future(session.send("go"))
    await phases.gate.came()
    if hold == "backoff":
        await asyncio.sleep(0.1)
    return session, phases, task


@pytest.mark.parametrize("hold", PHASES)
async def test_cancel_is_final_at_every_phase(world: World, hold: str):
    session, phases, task = await held(world, hold)
    assert await session.cancel() is True
    if hold in ("guard", "tool guard"):
        await asyncio.sleep(0.05)
        phases.gate.open()
    result = await asyncio.wait_for(task, 15)
    phases.gate.open()
    assert result.status == "cancelled"
    facts = await check_session(session)
    assert kinds(facts)[-1] == "turn.ended"
    assert stored(facts[-1])["status"] == "cancelled"
    assert len(results(facts)) == (0 if hold in ("model", "backoff", "guard") else 4)
    [run] = await session.runs()
    assert (run.status, run.state, run.checkpoint_round, run.resumable) == ("cancelled", "cancelled", None, False)
    assert types(await session.run_events(run.id))[-1] == "agent_end"
    assert await session.current_run() is None and await session.cancel() is False
    # The session goes on without a word about it, with a history that a provider takes.
    phases.hold = ""
    assert (await session.send("again")).status == "completed"
    for request in world.model.requests:
        check_messages(request.messages)
    assert (await session.run_snapshot(run.id)).status == "cancelled"


@pytest.mark.parametrize("hold", PHASES)
async def test_interrupt_can_be_settled_at_every_phase(world: World, hold: str):
    session, phases, task = await held(world, hold)
    assert await session.interrupt("maintenance") is True
    if hold in ("guard", "tool guard"):
        await asyncio.sleep(0.05)
        phases.gate.open()
    if hold == "async tool":
        await asyncio.sleep(0.05)
        phases.gate.open()
    with pytest.raises(RunInterrupted) as stopped:
        await asyncio.wait_for(task, 15)
    phases.gate.open()
    [run] = await session.runs()
    assert (run.state, run.is_terminal) == ("interrupted", False)
    assert stopped.value.run_id == run.id and stopped.value.resumable
    before = await session.facts()
    assert "turn.ended" not in kinds(before)

    world.model = None  # type: ignore[assignment]
    with pytest.raises(RunInterrupted) as told:
        await session.send("again")
    assert (told.value.code, told.value.run_id) == ("RUN_INTERRUPTED", run.id)
    assert told.value.open_calls == stopped.value.open_calls
    assert await session.facts() == before, "asking changed nothing"

    phases.hold = ""
    result = await session.send("again", on_interrupted="settle")
    assert result.status == "completed"
    facts = await check_session(session)
    assert facts[: len(before)] == before
    ended = [stored(f)["status"] for f in facts if f.kind == "turn.ended"]
    assert ended == ["failed", "completed"]
    # What landed counts: the tools were told and came back; the rest was not run.
    texts = {key: text for key, _, text in results(facts) if key.startswith("t1")}
    if hold in ("read", "tool", "async tool"):
        assert texts["t1-r1-c0"] == "saw 1" and texts["t1-r1-c1"] == "saw 2"
        assert texts["t1-r1-c2"] == ("interrupted, not run" if hold == "read" else "acted")
        assert texts["t1-r1-c3"] == ("acted too" if hold == "async tool" else "interrupted, not run")


async def test_the_session_option_settles_by_itself(world: World):
    session, _, task = await held(world, "tool", on_interrupted="settle")
    await session.interrupt("x")
    with pytest.raises(RunInterrupted):
        await task
    assert (await session.send("again")).status == "completed"
    await check_session(session)


async def test_raise_given_explicitly_wins_over_the_option(world: World):
    session, _, task = await held(world, "tool", on_interrupted="settle")
    await session.interrupt("x")
    with pytest.raises(RunInterrupted):
        await task
    with pytest.raises(RunInterrupted):
        await session.send("again", on_interrupted="raise")


async def test_a_result_may_land_after_the_interrupt(world: World):
    """In-flight results may land for up to 5 s (§1): a landed one counts."""
    started = threading.Event()

    def slow() -> str:
        started.set()
        time.sleep(0.5)
        return "landed"

    session = await world.session([reply(calls=[call("slow"), call("slow")]), reply("ok")], [slow])
    task = asyncio.ensure_future(session.send("go"))
    await until(started.is_set)
    await session.interrupt("x")
    with pytest.raises(RunInterrupted) as stopped:
        await task
    assert "t1-r1-c1" in stopped.value.open_calls
    await session.send("again", on_interrupted="settle")
    assert results(await check_session(session)) == [
        ("t1-r1-c0", True, "landed"), ("t1-r1-c1", False, "interrupted, not run"),
    ]  # fmt: skip


async def test_a_tool_that_will_not_end_has_an_unknown_outcome(world: World):
    if world.face == "async":
        pytest.skip("takes the five seconds of grace: once is enough, the flow is the same")
    gate = Gate()

    def stubborn() -> str:
        gate.wait()
        return "too late"

    session = await world.session([reply(calls=[call("stubborn"), call("stubborn")]), reply("ok")], [stubborn])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    await session.interrupt("x")
    with pytest.raises(RunInterrupted):
        await task
    await session.send("again", on_interrupted="settle")
    gate.open()
    assert results(await check_session(session)) == [
        ("t1-r1-c0", False, "interrupted, outcome unknown"), ("t1-r1-c1", False, "interrupted, not run"),
    ]  # fmt: skip


async def test_a_cancel_that_said_yes_is_final_even_after_an_interrupt(world: World):
    """``cancel()`` is True only when the run is cancelled for ever; an interrupt that still drains is no excuse."""
    gate = Gate()

    def slow() -> str:
        gate.wait()
        return "landed"

    session = await world.session([reply(calls=[call("slow")]), reply("ok")], [slow])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    assert await session.interrupt("x") is True
    await asyncio.sleep(0.1)
    said = await session.cancel()
    gate.open()
    try:
        status = (await task).status
    except RunInterrupted:
        status = "interrupted"
    assert status == ("cancelled" if said else "interrupted")
    await session.send("again", on_interrupted="settle")
    await check_session(session)


async def test_cancel_run_cancels_that_run_only(world: World):
    session, _, task = await held(world, "model")
    run = await session.current_run()
    assert await session.cancel_run("run-unknown") is False
    assert await session.cancel_run(run.id) is True
    assert (await task).status == "cancelled"
    assert await session.cancel_run(run.id) is False


async def test_a_cancelled_task_interrupts(world: World):
    """Task cancellation interrupts, it does not cancel (§1). The blocking face has Ctrl-C for it."""
    if world.face == "sync":
        pytest.skip("a task is cancelled in the async face only")
    session, _, task = await held(world, "tool")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [run] = await session.runs()
    assert run.state == "interrupted" and await session.current_run() is None
    assert (await session.send("again", on_interrupted="settle")).status == "completed"
    await check_session(session)


@pytest.mark.parametrize("hold", ["model", "tool"])
async def test_close_interrupts_and_lets_go(world: World, hold: str):
    session, _, task = await held(world, hold)
    session_id = session.session_id
    await session.close()
    with pytest.raises(RunInterrupted):
        await task
    await world.close()
    world._agents.clear()
    agent = await world.agent([reply("on")], tools=Phases("").tools())
    again = await agent.resume_session(session_id, SessionOptions(budget_guard=Phases("")))
    with pytest.raises(RunInterrupted):
        await again.send("x")
    assert (await again.send("x", on_interrupted="settle")).text == "on"
    await check_session(again)


async def test_cancel_from_another_agent_on_the_same_file(world: World):
    """Whoever is not the owner goes through the inbox (§8)."""
    session, _, task = await held(world, "tool")
    other = await world.agent([])
    twin = await other.resume_session(session.session_id, SessionOptions(budget_guard=ALLOWS))
    assert (await twin.current_run()).id
    assert await twin.cancel() is True
    assert (await asyncio.wait_for(task, 15)).status == "cancelled"
    await check_session(session)


async def test_a_cancel_before_the_run_and_after_it_is_no_cancel(world: World):
    session = await world.session([reply("ok"), reply("ok")])
    assert await session.cancel() is False and await session.interrupt("x") is False
    await session.send("go")
    assert await session.cancel() is False
    assert (await session.send("again")).status == "completed"
