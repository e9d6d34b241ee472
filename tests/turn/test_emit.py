"""What hosts put on a run's stream or on the session's own channel, and a damaged row (§10, F06, J03)."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest

from thence import Event, HostEnvConfig, ThenceError
from thence.testing import call, reply

from ..kit import Gate, World, types

PASSIVATE = {"type": "passivation_requested", "payload": {"reason": "drain", "deadline_ms": 1_700_000_000_000}}


async def test_emit_without_a_live_run_goes_to_the_sessions_channel(world: World):
    session = await world.session([reply("ok")], tenant_id="acme")
    run_id = (await session.send("go")).run_id
    before = await session.run_events(run_id)
    await session.emit(PASSIVATE)
    await session.emit(Event("peer_invocation", {"from_session_id": "s9", "from_tenant_id": "acme"}))
    first, second = await session.events()
    assert (first.type, dict(first.payload)) == ("passivation_requested", PASSIVATE["payload"])
    assert second.type == "peer_invocation"
    assert [e.metadata["sequence"] for e in (first, second)] == [0, 1]
    assert [e.metadata["run_id"] for e in (first, second)] == [None, None]
    assert first.metadata["tenant_id"] == "acme" and first.metadata["session_id"] == session.session_id
    assert [e.metadata["sequence"] for e in await session.events(after_sequence=0)] == [1]
    assert await session.run_events(run_id) == before
    assert all(f.kind != "event" for f in await session.facts())


async def test_emit_during_a_live_run_is_seen_on_its_stream(world: World):
    gate = Gate()

    async def hold(request):
        await gate.await_()
        return reply("ok")

    session = await world.session([hold])
    stream = await session.stream("go")
    reader = asyncio.ensure_future(_all(stream))
    await gate.came()
    await session.emit(PASSIVATE)
    run = await session.current_run()
    for _ in range(1000):
        if "passivation_requested" in types(await session.run_events(run.id)):
            break
        await asyncio.sleep(0.005)
    gate.open()
    seen = await reader
    assert types(seen).count("passivation_requested") == 1
    sequences = [e.metadata["sequence"] for e in seen if e.metadata["sequence"] is not None]
    assert sequences == list(range(len(sequences)))
    [event] = [e for e in seen if e.type == "passivation_requested"]
    assert event.metadata["run_id"] == run.id and dict(event.payload) == PASSIVATE["payload"]
    assert await session.events() == []


async def _all(stream) -> list[Event]:
    return [event async for event in stream]


async def test_C03_ten_events_from_another_agent_during_a_tool(world: World):
    gate = Gate()

    def slow() -> str:
        gate.wait()
        return "ok"

    session = await world.session([reply(calls=[call("slow")]), reply("done")], [slow])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    other = await world.agent([])
    twin = await other.resume_session(session.session_id)
    for n in range(10):
        await twin.emit({"type": "peer_invocation", "payload": {"from_session_id": f"s{n}"}})
    await asyncio.sleep(0.6)
    gate.open()
    result = await task
    assert result.text == "done"
    seen = [
        e.payload["from_session_id"] for e in await session.run_events(result.run_id) if e.type == "peer_invocation"
    ]
    assert seen == [f"s{n}" for n in range(10)]


async def test_unknown_types_are_kept_whole(world: World):
    session = await world.session([])
    payload = {"deep": {"list": [1, 2.5, None, True, "é😀"]}, "n": 2**60}
    await session.emit({"type": "acme.billing/v2", "payload": payload})
    [event] = await session.events()
    assert (event.type, dict(event.payload)) == ("acme.billing/v2", payload)


@pytest.mark.parametrize(
    "event",
    [{}, {"type": ""}, {"type": "  ", "payload": {}}, {"type": 7, "payload": {}}, {"type": "x", "payload": [1]},
     {"type": "x", "payload": {"a": float("nan")}}, {"type": "x", "payload": {"a": "\ud800"}},
     {"type": "x", "payload": {"a": object()}}, "x", None, 7],
)  # fmt: skip
async def test_a_bad_event_is_refused(world: World, event: Any):
    session = await world.session([])
    with pytest.raises((ValueError, TypeError)):
        await session.emit(event)
    assert await session.events() == []


async def test_the_channel_obeys_the_caps_of_a_run(world: World):
    session = await world.session([], retention_limits={"max_events_per_run": 3})
    for n in range(7):
        await session.emit({"type": "x", "payload": {"n": n}})
    assert [(e.metadata["sequence"], e.payload["n"]) for e in await session.events()] == [(4, 4), (5, 5), (6, 6)]


async def test_F06_an_event_over_the_byte_cap_is_no_error(world: World):
    session = await world.session([], retention_limits={"max_event_bytes_per_run": 1000})
    await session.emit({"type": "x", "payload": {"n": 1}})
    await session.emit({"type": "x", "payload": {"big": "y" * 5000}})
    await session.emit({"type": "x", "payload": {"n": 2}})
    kept = await session.events()
    assert [e.payload.get("n") for e in kept] == [1, 2]  # it alone is not kept; older ones stay
    assert [e.metadata["sequence"] for e in kept] == [0, 2]


async def test_J03_a_damaged_row_does_not_hide_the_others(world: World):
    session = await world.session([])
    for n in range(20):
        await session.emit({"type": "x", "payload": {"n": n}})
    db = sqlite3.connect(world.db, isolation_level=None)
    # A machine that writes badly asks no trigger: they are set aside for a moment.
    triggers = db.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'event'"
    ).fetchall()
    db.execute("BEGIN IMMEDIATE")
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    changed = db.execute("UPDATE event SET payload = CAST(x'ff41' AS TEXT) WHERE sequence = 7").rowcount
    for _, sql in triggers:
        db.execute(sql)
    db.execute("COMMIT")
    db.close()
    assert changed == 1
    events = await session.events()
    assert [e.metadata["sequence"] for e in events] == list(range(20))
    assert [e.damaged for e in events] == [n == 7 for n in range(20)]
    assert [e.payload["n"] for e in events if not e.damaged] == [n for n in range(20) if n != 7]


async def test_events_of_a_thousand_same_milliseconds_keep_their_order(world: World):
    """K06: order is insertion, never time."""
    session = await world.session([], host_env=HostEnvConfig("t", 5))
    for n in range(100):
        await session.emit({"type": "x", "payload": {"n": n}})
    assert [e.payload["n"] for e in await session.events()] == list(range(100))


async def test_emitting_to_a_gone_session_is_our_own_error(world: World):
    session = await world.session([])
    await session.close()
    with pytest.raises(ThenceError):
        await session.emit(PASSIVATE)


HIT = {"resource": "tokens", "kind": "soft", "consumed": 1, "limit": 2.5}


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        ("passivation_requested", {"reason": "manual"}),
        ("passivation_requested", {"reason": "", "deadline_ms": -1, "node": "n1"}),
        ("peer_invocation", {"from_session_id": "s"}),
        ("peer_invocation", {"from_session_id": "s", "from_tenant_id": "t", "correlation_id": "c"}),
        ("budget_threshold_hit", HIT),
        ("budget_threshold_hit", {**HIT, "kind": "hard", "message": "m"}),
    ],
)
async def test_a_cluster_event_with_its_fields_is_taken(world: World, type_: str, payload: dict[str, Any]):
    session = await world.session([])
    await session.emit({"type": type_, "payload": payload})
    [event] = await session.events()
    assert (event.type, dict(event.payload)) == (type_, payload)


@pytest.mark.parametrize(
    ("type_", "payload", "field"),
    [
        ("passivation_requested", {}, "reason"),
        ("passivation_requested", {"reason": None}, "reason"),
        ("passivation_requested", {"reason": "r", "deadline_ms": "5"}, "deadline_ms"),
        ("passivation_requested", {"reason": "r", "deadline_ms": 5.5}, "deadline_ms"),
        ("passivation_requested", {"reason": "r", "deadline_ms": True}, "deadline_ms"),
        ("passivation_requested", {"reason": "r", "deadline_ms": None}, "deadline_ms"),
        ("peer_invocation", {}, "from_session_id"),
        ("peer_invocation", {"from_session_id": 7}, "from_session_id"),
        ("peer_invocation", {"from_session_id": "s", "from_tenant_id": 7}, "from_tenant_id"),
        ("peer_invocation", {"from_session_id": "s", "correlation_id": []}, "correlation_id"),
        *(("budget_threshold_hit", {k: v for k, v in HIT.items() if k != name}, name) for name in HIT),
        ("budget_threshold_hit", {**HIT, "consumed": "1"}, "consumed"),
        ("budget_threshold_hit", {**HIT, "limit": True}, "limit"),
        ("budget_threshold_hit", {**HIT, "kind": "medium"}, "kind"),
        ("budget_threshold_hit", {**HIT, "message": 7}, "message"),
    ],
)  # fmt: skip
async def test_a_cluster_event_without_one_of_its_fields_is_refused(
    world: World, type_: str, payload: dict[str, Any], field: str
):
    session = await world.session([])
    with pytest.raises((ValueError, TypeError), match=f"'{field}'"):
        await session.emit({"type": type_, "payload": payload})
    assert await session.events() == []


async def test_an_announced_passivation_is_for_readers_and_stops_nothing(world: World):
    gate = Gate()

    async def hold(request):
        await gate.await_()
        return reply("ok")

    session = await world.session([hold])
    task = asyncio.ensure_future(session.send("go"))
    await gate.came()
    await session.emit({"type": "passivation_requested", "payload": {"reason": "drain", "deadline_ms": 1}})
    await asyncio.sleep(0.3)
    gate.open()
    assert (await task).text == "ok"


async def test_the_channel_has_its_own_sequence_and_obeys_the_byte_cap_and_zero(world: World):
    session = await world.session([reply("one")], retention_limits={"max_events_per_run": 0})
    await session.send("go")
    for _ in range(3):
        await session.emit(PASSIVATE)
    assert await session.events() == []
    await session.set_retention({"max_events_per_run": 2})
    await session.emit(PASSIVATE)
    [event] = await session.events()
    assert (event.metadata["sequence"], event.metadata["run_id"]) == (3, None)
