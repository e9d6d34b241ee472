"""Run records, usage, traces and retention through the API (§7, §9, §10)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from thence import HostEnvConfig, SessionConfiguration, SessionOptions, Usage, tool
from thence.testing import call, fixed_env, reply

from ..kit import Gate, World, check_session, stored, types


@tool(effect="read")
def look(n: int = 0) -> str:
    return "seen" * n


async def test_a_completed_run(world: World):
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "cache_read_tokens": 1}
    session = await world.session(
        [reply("x", calls=[call("look", {"n": 1}), call("look", {"n": 2})], usage=usage), reply("done", usage=usage)],
        [look], host_env=fixed_env("t", 1_700_000_000_000),
    )  # fmt: skip
    result = await session.send("go")
    run = await session.run_snapshot(result.run_id)
    assert (run.id, run.session_id, run.status, run.state) == (
        result.run_id,
        session.session_id,
        "completed",
        "completed",
    )
    assert (run.prompt, run.result_text, run.rounds, run.tool_calls_count) == ("go", "done", 1, 2)
    assert run.usage == result.usage == Usage(6, 8, 14, 2, 0)
    assert (run.requests_without_usage, run.error_code, run.error_message, run.resumable) == (0, None, None, False)
    assert (run.created_ms, run.ended_ms) == (1_700_000_000_000, 1_700_000_000_000)
    assert run.is_terminal and run.checkpoint_round is None and run.owner is None
    assert run.event_count == len(await session.run_events(run.id))
    assert await session.runs() == [run] and await session.current_run() is None
    assert run.to_dict()["usage"]["total_tokens"] == 14
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.status = "failed"


async def test_unknown_usage_is_counted_not_guessed(world: World):
    session = await world.session([reply("x", calls=[call("look")]), reply("ok", usage={"prompt_tokens": 5})], [look])
    result = await session.send("go")
    run = await session.run_snapshot(result.run_id)
    assert (run.usage.total_tokens, run.requests_without_usage) == (5, 1)
    answers = [stored(f)["usage"] for f in await session.facts() if f.kind == "model.turn"]
    assert answers[0] is None
    assert answers[1]["prompt_tokens"] == 5


async def test_usage_is_per_turn(world: World):
    session = await world.session([reply("a", usage={"prompt_tokens": 1}), reply("b", usage={"prompt_tokens": 10})])
    assert (await session.send("1")).usage.prompt_tokens == 1
    assert (await session.send("2")).usage.prompt_tokens == 10


async def test_V4_huge_usage_neither_wraps_nor_bricks_the_session(world: World):
    """It cannot be true, so it is not known what the answer took; never wraps, and the session goes on."""
    session = await world.session(
        [reply("a", usage={"prompt_tokens": 2**62, "completion_tokens": 2**62}), reply("b")] * 2
    )
    await session.send("1")
    [run] = await session.runs()
    assert (run.usage, run.requests_without_usage) == (Usage(), 1)
    assert (await session.send("2")).text == "b"
    await check_session(session)


async def test_a_live_run_shows_its_checkpoint_and_loses_it_at_the_end(world: World):
    gate = Gate()

    async def hold(request):
        await gate.await_()
        return reply("ok")

    session = await world.session([reply(calls=[call("look")]), reply(calls=[call("look", {"n": 1})]), hold], [look])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    run = await session.current_run()
    assert run.checkpoint_round == 2 and run.owner is not None and run.result_text is None
    gate.open()
    await task
    assert (await session.run_snapshot(run.id)).checkpoint_round is None


async def test_runs_are_listed_oldest_first(world: World):
    session = await world.session([reply(str(n)) for n in range(5)])
    ids = [(await session.send(f"p{n}")).run_id for n in range(5)]
    runs = await session.runs()
    assert [r.id for r in runs] == ids and [r.prompt for r in runs] == [f"p{n}" for n in range(5)]


async def test_the_result_as_json(world: World):
    session = await world.session([reply("ok", usage={"prompt_tokens": 2})])
    result = await session.send("go")
    assert result.to_dict()["text"] == "ok" and result.to_dict()["usage"]["prompt_tokens"] == 2
    assert result.to_dict()["status"] == "completed"


# ------------------------------------------------------------------ traces


async def test_a_trace_says_what_a_call_cost_and_nothing_it_said(world: World):
    secret = "a-secret-argument"

    @tool(effect="read")
    def leak(word: str) -> str:
        return f"{word} and a-secret-answer"

    def boom() -> str:
        raise ValueError("a-secret-error")

    session = await world.session(
        [reply(calls=[call("leak", {"word": secret}), call("boom"), call("nope")]), reply("ok")], [leak, boom],
        host_env=HostEnvConfig("t", 1_700_000_000_000),
    )  # fmt: skip
    result = await session.send("go")
    traces = await session.trace_events()
    first, second = (t.to_dict() for t in traces[:2])
    assert first["schema"] == "thence.trace_event.v1" and first["kind"] == "tool_execution"
    assert (first["name"], first["success"], first["exit_code"]) == ("leak", True, 0)
    assert first["output_bytes"] == len(f"{secret} and a-secret-answer")
    assert (second["name"], second["success"]) == ("boom", False) and second["exit_code"] != 0
    assert {t.run_id for t in traces} == {result.run_id}
    assert [t.to_dict()["duration_ms"] for t in traces] == [0] * len(traces)  # a fixed clock
    assert "secret" not in str([t.to_dict() for t in traces])


async def test_traces_have_a_duration_under_the_real_clock(world: World):
    @tool(effect="read")
    async def nap() -> str:
        await asyncio.sleep(0.05)
        return "x"

    session = await world.session([reply(calls=[call("nap")]), reply("ok")], [nap])
    await session.send("go")
    [trace] = await session.trace_events()
    assert 30 <= trace.payload["duration_ms"] < 20_000


# ------------------------------------------------------------------ retention


async def test_runs_over_the_cap_go_with_their_events(world: World):
    session = await world.session([reply(str(n)) for n in range(6)], retention_limits={"max_runs_retained": 2})
    ids = [(await session.send(f"p{n}")).run_id for n in range(6)]
    assert [r.id for r in await session.runs()] == ids[-2:]
    assert await session.run_events(ids[0]) == [] and await session.run_snapshot(ids[0]) is None
    assert len(await session.run_events(ids[-1])) > 0
    # Facts are not events: nothing of the conversation is gone.
    assert len([f for f in await check_session(session) if f.kind == "turn.ended"]) == 6


async def test_events_over_the_cap_oldest_first_and_the_count_goes_on(world: World):
    session = await world.session(
        [reply("x", calls=[call("look")]), reply("ok")], [look], retention_limits={"max_events_per_run": 4}
    )
    result = await session.send("go")
    events = await session.run_events(result.run_id)
    run = await session.run_snapshot(result.run_id)
    assert len(events) == 4 and run.event_count == 9
    assert [e.metadata["sequence"] for e in events] == [5, 6, 7, 8]
    assert types(events)[-1] == "agent_end"


async def test_event_bytes_are_capped_too(world: World):
    session = await world.session(
        [*(reply("y" * 700, calls=[call("look", {"n": n})]) for n in range(9)), reply("ok")], [look],
        retention_limits={"max_event_bytes_per_run": 3000},
    )  # fmt: skip
    result = await session.send("go")
    events = await session.run_events(result.run_id)
    assert 0 < sum(len(str(dict(e.payload))) for e in events) < 4000
    assert types(events)[-1] == "agent_end"


async def test_traces_over_the_cap(world: World):
    session = await world.session(
        [*(reply(calls=[call("look", {"n": n})]) for n in range(5)), reply("ok")],
        [look],
        retention_limits={"max_trace_events": 2},
    )
    await session.send("go")
    assert len(await session.trace_events()) == 2


@pytest.mark.parametrize(
    "cap", ["max_runs_retained", "max_events_per_run", "max_event_bytes_per_run", "max_trace_events"]
)
async def test_zero_keeps_none_and_is_no_error(world: World, cap: str):
    session = await world.session(
        [reply("x", calls=[call("look")]), reply("a"), reply("b")], [look], retention_limits={cap: 0}
    )
    first = await session.send("1")
    second = await session.send("2")
    assert (first.text, second.text) == ("a", "b") and first.run_id != second.run_id
    kept = {
        "max_runs_retained": await session.runs(),
        "max_events_per_run": await session.run_events(second.run_id),
        "max_event_bytes_per_run": await session.run_events(second.run_id),
        "max_trace_events": await session.trace_events(),
    }
    assert kept[cap] == []
    await check_session(session)


async def test_a_live_run_is_exempt_from_the_run_cap_and_is_judged_at_its_end(world: World):
    gate = Gate()

    async def hold(request):
        await gate.await_()
        return reply("ok")

    session = await world.session([hold, reply("b")], retention_limits={"max_runs_retained": 0})
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    assert len(await session.runs()) == 1 and await session.current_run() is not None
    gate.open()
    assert (await task).text == "ok"
    assert await session.runs() == []
    assert (await session.send("on")).text == "b"


async def test_set_retention_takes_effect_live(world: World):
    gate = Gate()

    async def hold(request):
        await gate.await_()
        return reply("ok")

    session = await world.session([reply("x", calls=[call("look")]), hold], [look])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    run = await session.current_run()
    assert len(await session.run_events(run.id)) > 3
    await session.set_retention({"max_events_per_run": 2})
    gate.open()
    await task
    assert len(await session.run_events(run.id)) == 2


async def test_set_retention_keeps_what_it_does_not_name(world: World):
    session = await world.session([reply("a")] * 4, retention_limits={"max_runs_retained": 1, "max_events_per_run": 2})
    await session.set_retention({"max_runs_retained": 3})
    results = [await session.send("go") for _ in range(4)]
    assert len(await session.runs()) == 3 and len(await session.run_events(results[-1].run_id)) == 2
    with pytest.raises(SessionConfiguration, match="retention_limits"):
        await session.set_retention({"max_runs": 1})


async def test_caps_are_restored_on_resume(world: World):
    agent = await world.agent([reply("a")] * 5)
    session = await agent.session(".", SessionOptions(session_id="s", retention_limits={"max_runs_retained": 1}))
    await session.send("1")
    await session.close()
    session = await agent.resume_session("s")
    await session.send("2")
    assert len(await session.runs()) == 1
    await session.close()
    session = await agent.resume_session("s", SessionOptions(retention_limits={"max_runs_retained": 2}))
    await session.send("3")
    await session.send("4")
    assert len(await session.runs()) == 2
