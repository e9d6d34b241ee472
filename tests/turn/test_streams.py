"""stream() and tail(): every recorded event once and in order, whatever the reader does (§1, §10)."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest

from thence import ModelError, RunFailed, RunInterrupted, SessionOptions, ThenceError, ToolContext, tool
from thence.chat import ReasoningDelta, TextDelta, ToolCallDelta
from thence.testing import call, reply

from ..kit import Gate, World, check_session, types, until


def recorded(events) -> list[int]:
    return [e.metadata["sequence"] for e in events if e.metadata["sequence"] is not None]


async def test_a_stream_is_the_run(world: World):
    def look(context: ToolContext) -> str:
        context.progress("working")
        return "seen"

    deltas: list[Any] = [
        ReasoningDelta("hm"),
        TextDelta("lo"),
        TextDelta("ok"),
        ToolCallDelta(0, "{", "look"),
        ToolCallDelta(0, "}"),
    ]
    session = await world.session([reply("look", calls=[call("look")], deltas=deltas), reply("done")], [look])
    stream = await session.stream("go")
    events = [event async for event in stream]
    result = await stream.result()
    assert result.text == "done" and result.status == "completed"
    assert recorded(events) == list(range(len(recorded(events))))
    kept = await session.run_events(result.run_id)
    assert [e.to_dict() for e in events if e.metadata["sequence"] is not None] == [e.to_dict() for e in kept]
    said = types(events)
    for kind in ("reasoning_delta", "text_delta", "tool_input_delta", "tool_output_delta"):
        assert kind in said, kind
    assert said.index("turn_start") < said.index("text_delta") < said.index("turn_end")
    assert said.index("tool_execution_start") < said.index("tool_output_delta") < said.index("tool_end")
    assert "".join(e.text for e in events if e.type == "text_delta") == "lookdone"
    # Provisional ones have no sequence, and are gone when their turn or call is recorded.
    assert all(e.metadata["sequence"] is None for e in events if e.type.endswith("_delta"))
    assert not [e for e in kept if e.type.endswith("_delta")]


@pytest.mark.parametrize("after", [0, 1, 4])
async def test_leaving_early_interrupts(world: World, after: int):
    gate = Gate()

    async def hang(request):
        await gate.await_()
        return reply("late")

    session = await world.session([reply("x", calls=[call("look")]), hang, reply("on")], [look])
    stream = await session.stream("go")
    async for _ in stream:
        after -= 1
        if after < 0:
            break
    await stream.leave()
    gate.open()
    [run] = await session.runs()
    assert run.state == "interrupted" and await session.current_run() is None
    with pytest.raises(RunInterrupted):
        await session.send("next")
    assert (await session.send("next", on_interrupted="settle")).status == "completed"
    await check_session(session)


async def test_leaving_after_the_end_changes_nothing(world: World):
    session = await world.session([reply("a"), reply("b")])
    stream = await session.stream("go")
    _ = [event async for event in stream]
    await stream.leave()
    assert [run.status for run in await session.runs()] == ["completed"]
    assert (await session.send("on")).text == "b"


@tool
def look() -> str:
    return "seen"


async def test_dropping_the_iterator_interrupts_too(world: World):
    gate = Gate()

    async def hang(request):
        await gate.await_()
        return reply("late")

    session = await world.session([hang, reply("on")])
    stream = await session.stream("go")
    await stream.__anext__()
    del stream
    gc.collect()
    states: list[str] = []
    while "interrupted" not in states and len(states) < 1000:
        states += [run.state for run in await session.runs()]
        await asyncio.sleep(0.005)
    gate.open()
    assert states[-1] == "interrupted"
    assert (await session.send("next", on_interrupted="settle")).status == "completed"


async def many_events(world: World, rounds: int):
    numbers = itertools.count()

    @tool(effect="read", repeatable=True)
    def tick(n: int) -> int:
        return n

    script = [lambda request: reply(calls=[call("tick", {"n": next(numbers)}) for _ in range(8)])] * rounds
    session = await world.session(
        [*script, reply("end")], [tick], max_tool_rounds=rounds + 1, retention_limits={"max_events_per_run": 100_000}
    )
    return session


async def test_a_slow_reader_gets_every_recorded_event_once_in_order_and_never_blocks_the_run(world: World):
    """The live buffer is 1,024 events; beyond it the reader goes on from the file (§1)."""
    rounds = 45
    session = await many_events(world, rounds)
    stream = await session.stream("go")
    first = await stream.__anext__()
    [run] = await session.runs()
    while not run.is_terminal:  # the run goes on to its end while nobody reads
        await asyncio.sleep(0.01)
        [run] = await session.runs()
    assert run.status == "completed" and run.event_count > 1024
    rest = [event async for event in stream]
    assert recorded([first, *rest]) == list(range(run.event_count))
    assert [e.to_dict() for e in [first, *rest] if e.metadata["sequence"] is not None] == [
        e.to_dict() for e in await session.run_events(run.id)
    ]
    assert (await stream.result()).text == "end"


async def test_a_reader_that_catches_up_while_the_run_goes_on_gets_nothing_twice(world: World):
    """What is read from the file may come out of the live buffer again: it must not reach the reader again."""
    session = await many_events(world, 100)
    stream = await session.stream("go")
    seen = [await stream.__anext__()]
    for _ in range(2000):
        if (await session.runs())[0].event_count > 1300:
            break
        await asyncio.sleep(0.01)
    seen += [event async for event in stream]
    [run] = await session.runs()
    assert run.event_count > 2000
    assert recorded(seen) == list(range(run.event_count))


async def test_a_slow_reader_of_many_deltas_still_sees_what_is_recorded(world: World):
    texts = ["x"] * 5000
    session = await world.session([reply("x" * 5000, deltas=texts), reply("y")])
    stream = await session.stream("go")
    events = [await stream.__anext__()]
    await until(lambda: world.model.requests)
    await asyncio.sleep(0.3)
    events += [event async for event in stream]
    [run] = await session.runs()
    assert recorded(events) == list(range(run.event_count))
    assert types(events)[-1] == "agent_end"


async def test_tail_follows_a_run_from_another_agent(world: World):
    gate = Gate()

    async def hang(request):
        await gate.await_()
        return reply("whole answer", deltas=["whole ", "answer"])

    session = await world.session([reply("x", calls=[call("look")]), hang], [look])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    run = await session.current_run()
    other = await world.agent([])
    twin = await other.resume_session(session.session_id)
    tail = asyncio.ensure_future(twin.tail_list(run.id))
    await asyncio.sleep(0.1)
    gate.open()
    await task
    events = await asyncio.wait_for(tail, 20)
    assert recorded(events) == list(range((await session.run_snapshot(run.id)).event_count))
    assert types(events)[-1] == "agent_end"


async def test_tail_shows_provisional_pieces_while_they_live(world: World):
    """Tailers get deltas within 100 ms from a table of their own (§10)."""
    gate = Gate()

    class Slow:
        name = "slow"

        def stream(self, request):
            yield TextDelta("a piece")
            gate.wait()
            yield reply("a piece").reply

    agent = await world.agent([], model=Slow())
    session = await agent.session(".")
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    run = await session.current_run()
    tail = asyncio.ensure_future(session.tail_list(run.id))
    await asyncio.sleep(0.6)
    gate.open()
    await task
    events = await asyncio.wait_for(tail, 20)
    assert [(e.type, e.text, e.metadata["sequence"]) for e in events if e.type == "text_delta"] == [
        ("text_delta", "a piece", None)
    ]
    assert [e for e in await session.tail_list(run.id) if e.type == "text_delta"] == []


async def test_pieces_leave_the_file_when_what_they_are_of_is_recorded(world: World):
    """Of an answer, of a tool's output, and of attempts that failed: gone while the run still lives (§10)."""
    seen: list[tuple[str, int]] = []

    def count(when: str) -> None:
        with closing(sqlite3.connect(world.db)) as plain:
            seen.append((when, plain.execute("SELECT count(*) FROM delta").fetchone()[0]))

    @tool
    def work(context: ToolContext) -> str:
        """Work."""
        count("when the answer is recorded")
        context.progress("half")
        time.sleep(0.3)  # longer than pieces are held back
        count("at work")
        return "worked"

    class Slow:
        name = "slow"
        asked = 0

        def stream(self, request):
            self.asked += 1
            if self.asked == 3:
                count("when the result is recorded")
                yield reply("done").reply
                return
            yield TextDelta("a piece")
            time.sleep(0.3)
            count("while it answers")
            if self.asked == 1:
                raise ModelError("stream_broken", "gone", retryable=True)
            yield reply("a piece", calls=[call("work")]).reply

    agent = await world.agent([], model=Slow(), tools=[work])
    await (await agent.session(".", SessionOptions(retry_base_ms=1))).send("go")
    assert seen == [
        ("while it answers", 1),
        ("while it answers", 2),
        ("when the answer is recorded", 0),
        ("at work", 1),
        ("when the result is recorded", 0),
    ]


@pytest.mark.parametrize("after", [None, 0, 3, 8, 100])
async def test_tail_of_a_run_that_is_over_ends_by_itself(world: World, after: int | None):
    session = await world.session([reply("x", calls=[call("look")]), reply("ok")], [look])
    result = await session.send("go")
    events = await session.tail_list(result.run_id, after_sequence=after)
    total = (await session.run_snapshot(result.run_id)).event_count
    assert recorded(events) == list(range(0 if after is None else after + 1, total))


async def test_tail_reports_a_gap(world: World):
    session = await world.session([reply("ok")], retention_limits={"max_events_per_run": 2})
    result = await session.send("go")
    events = await session.tail_list(result.run_id)
    total = (await session.run_snapshot(result.run_id)).event_count
    assert total > 2 and recorded(events) == [total - 2, total - 1]
    assert len(events) == 3 and events[0].metadata["sequence"] is None, "the gap is told"


async def test_tail_of_an_unknown_run(world: World):
    session = await world.session([reply("ok")])
    with pytest.raises(ThenceError, match="run-nope"):
        await session.tail_list("run-nope")


async def test_a_stream_carries_tags_and_the_run_id(world: World):
    session = await world.session([reply("ok")], tenant_id="acme", correlation_id="c-1")
    events = [event async for event in await session.stream("go")]
    [run] = await session.runs()
    for event in events:
        assert event.metadata["run_id"] == run.id and event.metadata["session_id"] == session.session_id
        assert event.metadata["tenant_id"] == "acme" and event.metadata["correlation_id"] == "c-1"
        assert "principal" not in event.metadata or event.metadata["principal"] is None


async def test_a_stream_that_fails_raises_its_error_at_the_end(world: World):
    session = await world.session([ModelError("http_400", "bad request", retryable=False)])
    stream = await session.stream("go")
    seen = []
    with pytest.raises(RunFailed, match="bad request"):
        async for event in stream:
            seen.append(event)
    assert types(seen)[-1] == "error" and "bad request" in seen[-1].payload["message"]
    with pytest.raises(RunFailed):
        await stream.result()


async def test_two_sessions_stream_side_by_side(world: World):
    agent = await world.agent(itertools.repeat(lambda request: reply(request.messages[-1].text)))
    sessions = [await agent.session(".", SessionOptions(session_id=f"s{n}")) for n in range(4)]

    async def run(number: int, session) -> list[str]:
        return [e.text async for e in await session.stream(f"m{number}") if e.type == "turn_end"]

    assert await asyncio.gather(*(run(n, s) for n, s in enumerate(sessions))) == [[f"m{n}"] for n in range(4)]
