"""Events (§10): envelope, vocabulary, times and pages."""

from __future__ import annotations

from typing import Any

import pytest

from thence import ModelError, RunFailed, SessionOptions, tool
from thence.testing import call, fixed_env, reply

from ..kit import Both, World, types

RECORDED = {
    "agent_start", "turn_start", "tool_start", "tool_execution_start", "tool_end", "turn_end", "agent_end", "error",
    "permission_denied", "confirmation_required", "confirmation_received", "confirmation_timeout", "user_question",
    "context_compacted", "subagent_start", "subagent_progress", "subagent_end", "run_control_applied",
    "budget_threshold_hit",
}  # fmt: skip


@tool(effect="read")
def look(n: int = 0) -> str:
    return f"saw {n}"


async def one_run(world: World, *, tags: bool = True, **more: Any) -> tuple[Both, str]:
    given: dict[str, Any] = {"tenant_id": "acme", "principal": "p", "correlation_id": "c"} if tags else {}
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    script = [reply("looking", calls=[call("look", {"n": 1}), call("nope")], usage=usage), reply("done", usage=usage)]
    session = await world.session([*script, *[reply("more")] * 9], [look], **given, **more)
    result = await session.send("go")
    return session, result.run_id


async def test_the_events_of_a_run(world: World):
    session, run_id = await one_run(world)
    events = await session.run_events(run_id)
    assert types(events) == [
        "agent_start", "turn_start", "turn_end", "tool_start", "tool_start", "tool_end", "tool_execution_start",
        "tool_end", "turn_start", "turn_end", "agent_end",
    ] or types(events) == [
        "agent_start", "turn_start", "turn_end", "tool_start", "tool_start", "tool_execution_start", "tool_end",
        "tool_end", "turn_start", "turn_end", "agent_end",
    ]  # fmt: skip
    assert set(types(events)) <= RECORDED
    by = {e.type: dict(e.payload) for e in events}
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "cache_read_tokens": 0,
        "cache_write_tokens": 0,
    }
    assert by["agent_start"] == {"prompt": "go"}
    assert [e.payload["turn"] for e in events if e.type == "turn_start"] == [1, 2]
    first, second = (dict(e.payload) for e in events if e.type == "turn_end")
    assert first == {"turn": 1, "text": "looking", "usage": usage} and second["text"] == "done"
    assert by["tool_execution_start"] == {"id": "t1-r1-c0", "name": "look", "args": {"n": 1}}
    ends = {e.payload["id"]: e.payload for e in events if e.type == "tool_end"}
    assert (ends["t1-r1-c0"]["output"], ends["t1-r1-c0"]["exit_code"], ends["t1-r1-c0"]["name"]) == ("saw 1", 0, "look")
    assert ends["t1-r1-c1"]["exit_code"] != 0 and "nope" in ends["t1-r1-c1"]["output"]
    assert by["agent_end"]["text"] == "done" and by["agent_end"]["usage"] == {k: 2 * v for k, v in usage.items()}


async def test_the_envelope(world: World):
    session, run_id = await one_run(world, host_env=fixed_env("t", 1_700_000_000_123))
    events = await session.run_events(run_id)
    for number, event in enumerate(events):
        assert event.to_dict() == {
            "version": 1,
            "type": event.type,
            "payload": dict(event.payload),
            "metadata": {
                "run_id": run_id, "session_id": session.session_id, "sequence": number,
                "timestamp_ms": 1_700_000_000_123, "tenant_id": "acme", "principal": "p", "correlation_id": "c",
            },
        }  # fmt: skip


async def test_a_failed_run_ends_with_error(world: World):
    session = await world.session([ModelError("http_400", "no such model", retryable=False)])
    with pytest.raises(RunFailed):
        await session.send("go")
    [run] = await session.runs()
    last = (await session.run_events(run.id))[-1]
    assert last.type == "error" and last.payload["message"] == run.error_message


async def test_timestamps_of_a_run_never_go_back(world: World):
    env = fixed_env("t", 1_700_000_000_000)
    clock: Any = env.clock

    @tool(effect="read")
    def back(n: int) -> int:
        clock.set(1_700_000_000_000 + (-5000 if n % 2 else 9000))
        return n

    session = await world.session(
        [*(reply(calls=[call("back", {"n": n})]) for n in range(4)), reply("ok")], [back], host_env=env
    )
    result = await session.send("go")
    times = [e.metadata["timestamp_ms"] for e in await session.run_events(result.run_id)]
    assert times == sorted(times) and len(set(times)) > 1


async def test_a_run_does_not_end_before_it_began(world: World):
    """§10, of the run's row too: a clock that was set back does not make its times go back."""
    env = fixed_env("t", 1_700_000_000_000)
    clock: Any = env.clock

    async def back(request):
        clock.set(1_600_000_000_000)
        return reply("ok")

    session = await world.session([back], host_env=env)
    run = await session.run_snapshot((await session.send("go")).run_id)
    assert run.created_ms <= run.updated_ms and run.created_ms <= run.ended_ms


async def test_long_texts_do_not_make_events_grow(world: World):
    session = await world.session([reply("y" * 100_000), reply("ok")])
    result = await session.send("x" * 100_000)
    events = await session.run_events(result.run_id)
    assert all(len(str(e.payload)) < 20_000 for e in events)
    assert result.text == "y" * 100_000


# ------------------------------------------------------------------ pages

PAGES = [
    (None, 3, [0, 1, 2], True), (None, 1000, list(range(11)), False), (2, 3, [3, 4, 5], True), (9, 5, [10], False),
    (10, 5, [], False), (500, 5, [], False), (None, 0, [], True),
]  # fmt: skip


@pytest.mark.parametrize(("after", "limit", "expected", "more"), PAGES)
async def test_a_page(world: World, after: int | None, limit: int, expected: list[int], more: bool):
    session, run_id = await one_run(world)
    page = await session.run_event_page(run_id, after_sequence=after, limit=limit)
    assert [e.metadata["sequence"] for e in page.events] == expected
    assert (page.first_available_sequence, page.latest_sequence_exclusive) == (0, 11)
    assert page.next_after_sequence == (expected[-1] if expected else after)
    assert (page.retention_gap, page.has_more) == (False, more)
    assert set(page.to_dict()) == {
        "events", "first_available_sequence", "latest_sequence_exclusive", "next_after_sequence", "retention_gap",
        "has_more",
    }  # fmt: skip


@pytest.mark.parametrize(("after", "gap"), [(None, True), (0, True), (5, True), (6, True), (7, False), (8, False)])
async def test_a_page_reports_a_retention_gap(world: World, after: int | None, gap: bool):
    session, run_id = await one_run(world, retention_limits={"max_events_per_run": 3})
    page = await session.run_event_page(run_id, after_sequence=after)
    assert page.first_available_sequence == 8 and page.latest_sequence_exclusive == 11
    assert page.retention_gap is gap


async def test_paging_to_the_end_gives_everything_once(world: World):
    session, run_id = await one_run(world)
    after, seen = None, []
    while True:
        page = await session.run_event_page(run_id, after_sequence=after, limit=2)
        seen += [e.metadata["sequence"] for e in page.events]
        if not page.has_more:
            break
        after = page.next_after_sequence
    assert seen == list(range(11))


async def test_pages_of_unknown_runs_and_of_other_sessions(world: World):
    session, run_id = await one_run(world)
    other = await world._agents[0].session(".", SessionOptions())
    assert await session.run_event_page("run-nope") is None and await session.run_events("run-nope") == []
    assert await other.run_event_page(run_id) is None and await other.run_events(run_id) == []
    assert await other.run_snapshot(run_id) is None


@pytest.mark.parametrize("arguments", [{"limit": -1}, {"limit": True}, {"limit": "5"}, {"after_sequence": -2}])
async def test_bad_page_arguments_are_refused(world: World, arguments: dict[str, Any]):
    session, run_id = await one_run(world)
    with pytest.raises((ValueError, TypeError)):
        await session.run_event_page(run_id, **arguments)


async def test_budget_threshold_hit_is_the_only_cluster_event_the_engine_makes(world: World):
    class Soft:
        def check_before_llm(self, session_id, tokens):
            return {"decision": "soft", "resource": "r", "consumed": 1, "limit": 2}

    session, run_id = await one_run(world, budget_guard=Soft())
    said = types(await session.run_events(run_id))
    assert said.count("budget_threshold_hit") == 2
    assert not {"passivation_requested", "peer_invocation"} & set(said)
