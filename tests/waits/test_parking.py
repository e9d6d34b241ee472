"""A run that waits for a person (§10): how it parks, how it goes on, and that nothing runs twice."""

from __future__ import annotations

import asyncio
import json

import pytest

from thence import Wait

from ..kit import check_log, kinds, results, stored, types
from ..resume.kit import calls, done
from .kit import (
    C0,
    MS,
    NOT_IN_TIME,
    Desk,
    Plain,
    approve_all,
    asks,
    digest,
    ended_well,
    events_of,
    ids,
    said_yes,
)

PUSH = 'bash:{"command":"git push origin"}'
ARGS = {"command": "git push origin"}
SCRIPT = [calls(PUSH), done()]
POLICY = asks("bash(command=git push*)")


async def test_ask_parks_the_run(desk):
    """§10: a wait row, a fact, an event; `send` returns `parked` with the wait; the tool did not run."""
    here: Desk = desk(SCRIPT, permission_policy=POLICY)
    session, result = await here.parked()
    assert here.effects.ran == [] and len(here.model.requests) == 1
    [wait] = result.waits
    assert isinstance(wait, Wait)
    assert (wait.id, wait.session_id, wait.run_id) == (f"{C0}-w1", "s", result.run_id)
    assert (wait.kind, wait.subject, wait.tool, wait.arguments) == ("confirmation", C0, "bash", ARGS)
    assert (wait.digest, wait.deadline_ms, wait.state, wait.opened_ms) == (digest("bash", ARGS), None, "open", MS)
    assert (wait.value, wait.by) == (None, None)
    assert json.loads(json.dumps(wait.to_dict()))["id"] == wait.id
    assert json.loads(json.dumps(result.to_dict()))["status"] == "parked"
    assert await session.waits() == [wait] == await session.waits(result.run_id) == await here.agent.waits()
    assert await session.waits("run-nobody") == []


async def test_what_a_parked_run_leaves_in_the_file(desk):
    """§10: no owner, status parked, one `wait.opened` of the call; read by nothing but SQLite."""
    here: Desk = desk(SCRIPT, permission_policy=POLICY)
    session, result = await here.parked()
    with Plain(here.db) as plain:
        assert plain.rows("SELECT run_id, status, state FROM runs") == [(result.run_id, "parked", "parked")]
        assert plain.one("SELECT owner FROM session") is None
        assert plain.rows("SELECT wait_id, run_id, kind, subject, digest, state, answer, answered_by FROM waits") == [
            (f"{C0}-w1", result.run_id, "confirmation", C0, digest("bash", ARGS), "open", None, None)
        ]
        assert plain.one("SELECT count(*) FROM inflight WHERE state = 'started'") == 0
    run = await session.run_snapshot(result.run_id)
    assert (run.status, run.state, run.owner, run.ended_ms, run.is_terminal) == ("parked", "parked", None, None, False)
    facts = await session.facts()
    check_log(facts)
    assert kinds(facts) == ["run.configured", "user.message", "model.turn", "wait.opened"]
    opened = stored(facts[-1])
    assert {name: opened.get(name) for name in ("wait_id", "kind", "subject", "digest", "deadline_ms")} == {
        "wait_id": f"{C0}-w1", "kind": "confirmation", "subject": C0, "digest": digest("bash", ARGS),
        "deadline_ms": None,
    }  # fmt: skip
    assert not [info for info in await here.agent.list_sessions() if info.busy]


async def test_what_the_reader_is_told(desk):
    """§10: `confirmation_required`, later `confirmation_received`; started and ended once each."""
    here: Desk = desk(SCRIPT, permission_policy=POLICY)
    session, result = await here.parked()
    [event] = await events_of(session, result.run_id, "confirmation_required")
    expected = {
        "tool_id": C0, "tool_name": "bash", "args": ARGS, "wait_id": f"{C0}-w1", "digest": digest("bash", ARGS),
    }  # fmt: skip
    assert {name: event[name] for name in expected} == expected and event.get("deadline_ms") is None
    said = types(await session.run_events(result.run_id))
    assert not {"agent_end", "error", "tool_execution_start", "tool_end"} & set(said)
    await session.confirm(C0, True, "go ahead")
    await session.resume_run(result.run_id)
    [received] = await events_of(session, result.run_id, "confirmation_received")
    assert (received["tool_id"], received["approved"], received["reason"]) == (C0, True, "go ahead")
    said = types(await session.run_events(result.run_id))
    for kind in ("tool_start", "tool_execution_start", "tool_end", "confirmation_required"):
        assert said.count(kind) == 1, kind
    assert said.index("confirmation_required") < said.index("confirmation_received")
    assert said.index("confirmation_received") < said.index("tool_execution_start")


async def test_approved_the_same_run_goes_on(desk):
    """§7 table, §10: same id, no new branch, usage and counts of what went before included."""
    here: Desk = desk([calls("look:1"), calls(PUSH), done()], permission_policy=POLICY)
    session, result = await here.parked()
    await session.answer("t1-r2-c0-w1", True, by="ann")
    [wait] = await session.waits()
    assert (wait.state, said_yes(wait.value), wait.by) == ("answered", True, "ann")
    again = await session.resume_run(result.run_id)
    assert (again.status, again.run_id, again.text, again.replayed) == ("completed", result.run_id, "Done.", False)
    assert (again.tool_calls_count, again.usage.prompt_tokens, again.usage.completion_tokens) == (2, 120, 7)
    assert here.effects.keys() == ["t1-r1-c0", "t1-r2-c0"] and len(here.model.requests) == 3
    facts = await ended_well(session, result.run_id)
    assert results(facts)[-1] == ("t1-r2-c0", True, "bash git push origin")
    [answered] = [stored(fact) for fact in facts if fact.kind == "wait.answered"]
    assert (answered["wait_id"], said_yes(answered["value"]), answered["by"]) == ("t1-r2-c0-w1", True, "ann")
    run = await session.run_snapshot(result.run_id)
    assert (run.rounds, run.tool_calls_count, run.usage.prompt_tokens) == (2, 2, 120)
    with Plain(here.db) as plain:
        assert plain.one("SELECT count(*) FROM branch") == plain.one("SELECT count(*) FROM run_identity") == 1
        assert plain.one("SELECT count(*) FROM inflight") == plain.one("SELECT count(*) FROM checkpoint") == 0
        assert plain.one("SELECT state FROM waits") == "closed"
    # settled: nothing is left to do, and the recorded outcome is said again
    once_more = await session.resume_run(result.run_id)
    assert (once_more.replayed, once_more.text) == (True, "Done.") and len(here.effects.ran) == 2


@pytest.mark.parametrize(
    ("reason", "by", "text"),
    [
        (None, None, "Error: rejected by a person"), ("too risky", None, "Error: rejected by a person: too risky"),
        (None, "ann", "Error: rejected by ann"), ("too risky", "ann", "Error: rejected by ann: too risky"),
    ],
)  # fmt: skip
async def test_rejected_the_model_hears_it(desk, reason: str | None, by: str | None, text: str):
    """§10: a failed result with the exact sentence; the run goes on and completes."""
    here: Desk = desk(SCRIPT, permission_policy=POLICY)
    session, result = await here.parked()
    await session.confirm(C0, False, reason, by=by)
    again = await session.resume_run(result.run_id)
    assert (again.status, again.run_id, again.tool_calls_count) == ("completed", result.run_id, 0)
    assert here.effects.ran == []
    facts = await ended_well(session, result.run_id)
    assert results(facts) == [(C0, False, text)]
    [refused] = [stored(fact) for fact in facts if fact.kind == "tool.result"]
    assert refused["metadata"]["refused"] == "rejected"
    [event] = await events_of(session, result.run_id, "confirmation_received")
    assert (event["tool_id"], event["approved"], event.get("reason")) == (C0, False, reason)
    assert "tool_execution_start" not in types(await session.run_events(result.run_id))
    assert [(m.ok, m.text) for m in here.model.requests[-1].messages if m.role == "tool"] == [(False, text)]


async def test_not_confirmed_in_time(desk):
    """§10: the deadline is judged when the run is claimed; passed means rejected."""
    here: Desk = desk(SCRIPT, permission_policy=asks("bash", timeout_ms=60_000))
    session, result = await here.parked()
    assert result.waits[0].deadline_ms == MS + 60_000
    [event] = await events_of(session, result.run_id, "confirmation_required")
    assert event["deadline_ms"] == MS + 60_000
    here.later(59_000)
    with pytest.raises(Exception, match=f"{C0}-w1"):
        await session.resume_run(result.run_id)
    here.later(2_000)
    again = await session.resume_run(result.run_id)
    assert (again.status, again.run_id) == ("completed", result.run_id) and here.effects.ran == []
    facts = await ended_well(session, result.run_id)
    assert results(facts) == [(C0, False, NOT_IN_TIME)]
    [refused] = [stored(fact) for fact in facts if fact.kind == "tool.result"]
    assert refused["metadata"]["refused"] == "confirmation_timeout"
    [event] = await events_of(session, result.run_id, "confirmation_timeout")
    assert (event["tool_id"], event["action_taken"]) == (C0, "rejected")
    assert await events_of(session, result.run_id, "confirmation_received") == []


async def test_answered_in_time_counts_also_when_nobody_went_on_for_long(desk):
    """§10: the answer is judged by the deadline, not the one who goes on."""
    here: Desk = desk(SCRIPT, permission_policy=asks("bash", timeout_ms=60_000))
    session, result = await here.parked()
    here.later(59_000)
    await session.confirm(C0, True)
    here.later(3_600_000)
    assert (await session.resume_run(result.run_id)).status == "completed"
    assert results(await ended_well(session, result.run_id))[0][1] is True and here.effects.keys() == [C0]


async def test_without_a_timeout_it_waits_for_ever(desk):
    """§10: no time-out by default."""
    here: Desk = desk(SCRIPT, permission_policy=POLICY)
    session, result = await here.parked()
    here.later(10 * 365 * 86_400_000)
    session = await here.reopen()
    await session.confirm(C0, True)
    assert (await session.resume_run(result.run_id)).status == "completed"


async def test_parking_twice_in_one_turn(desk):
    """§10: the same run parks as often as it must; each wait has its own id."""
    here: Desk = desk([calls("put:0"), calls("look:1", "put:2"), done()], permission_policy=asks("put"))
    session, result = await here.parked()
    await session.confirm(C0, True)
    second = await session.resume_run(result.run_id)
    assert (second.status, second.run_id, ids(second)) == ("parked", result.run_id, ["t1-r2-c1-w1"])
    assert (second.tool_calls_count, second.usage.prompt_tokens) == (2, 20)
    assert (await session.run_snapshot(result.run_id)).status == "parked"
    with Plain(here.db) as plain:
        assert plain.one("SELECT owner FROM session") is None
    session = await here.reopen()
    await session.confirm("t1-r2-c1", True)
    third = await session.resume_run(result.run_id)
    assert (third.status, third.run_id, third.tool_calls_count) == ("completed", result.run_id, 3)
    await ended_well(session, result.run_id)


async def test_the_next_turn_of_a_session_that_was_parked(desk):
    """§1: after it has gone on to its end the session is as any other."""
    here: Desk = desk([calls("put:0"), done(), calls("put:1"), done("More.")], permission_policy=asks("put"))
    session, result = await here.parked()
    await approve_all(session, result.run_id)
    second = await session.send("And?")
    assert (second.status, ids(second)) == ("parked", ["t2-r1-c0-w1"]) and second.run_id != result.run_id
    assert (await approve_all(session, second.run_id)).text == "More."


async def test_a_stream_ends_when_the_run_parks(desk):
    """§10: `stream` ends after `confirmation_required`; its result says parked, with the waits."""
    here: Desk = desk([calls(PUSH, "look:1"), done()], permission_policy=POLICY)
    session = await here.open()
    stream = await session.stream("Go.")
    events = [event async for event in stream]
    result = await stream.result()
    assert (result.status, ids(result)) == ("parked", [f"{C0}-w1"])
    said = types(events)
    assert "confirmation_required" in said and "agent_end" not in said
    recorded = [event.to_dict() for event in await session.run_events(result.run_id)]
    assert [event.to_dict() for event in events if event.metadata["sequence"] is not None] == recorded
    await session.confirm(C0, True)
    assert (await session.resume_run(result.run_id)).text == "Done."
    await ended_well(session, result.run_id)


async def test_a_spawned_run_parks(desk):
    """§7: `wait()` returns when it has parked; the same id and input again is that run, and starts nothing."""
    here: Desk = desk(SCRIPT, permission_policy=POLICY)
    session = await here.open()
    spawned = await session.spawn_run_with_id("mine", "Go.")
    wait = spawned.wait()
    result = await wait if asyncio.iscoroutine(wait) else wait
    assert (result.status, result.run_id, ids(result)) == ("parked", "mine", [f"{C0}-w1"])
    again = await session.spawn_run_with_id("mine", "Go.")
    assert (again.replayed, again.run.status) == (True, "parked") and len(here.model.requests) == 1
    await session.confirm(C0, True)
    assert (await session.resume_run("mine")).run_id == "mine"
    await ended_well(session, "mine")
