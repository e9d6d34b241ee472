"""A parked run among everything else (§1, §7, §8, §9): who is refused, what ends it, what leaves it alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from thence import SessionBusy, SessionOptions, ThenceError
from thence.testing import reply

from ..kit import Gate, check_session, kinds, results, stored, types
from ..resume.kit import calls, done
from .kit import C0, C1, C2, Desk, Plain, approve_all, asks, ended_well, ids, wait_error

W = f"{C0}-w1"
SCRIPT = [calls("put:0", "look:1"), done(), done("More.")]


@pytest.fixture
def here(desk) -> Desk:
    made: Desk = desk(SCRIPT, permission_policy=asks("put"))
    return made


async def stream_all(session: Any, prompt: str) -> None:
    stream = await session.stream(prompt)
    _ = [event async for event in stream]
    await stream.result()


OPERATIONS = {
    "send": lambda session, run: session.send("More?"),
    "send and settle": lambda session, run: session.send("More?", on_interrupted="settle"),
    "send and resume": lambda session, run: session.send("More?", on_interrupted="resume"),
    "send under an id": lambda session, run: session.send("More?", run_id="mine"),
    "stream": lambda session, run: stream_all(session, "More?"),
    "spawn": lambda session, run: session.spawn_run_with_id("mine", "More?"),
    "resume": lambda session, run: session.resume_run(run),
}


@pytest.mark.parametrize("how", list(OPERATIONS))
async def test_while_parked_the_session_is_busy(here: Desk, how: str):
    """§1, §7: SessionBusy that names the waits; nothing is written, nothing is asked of the model."""
    session, result = await here.parked()
    session = await here.reopen()
    with Plain(here.db) as plain:
        before = plain.state()
        with pytest.raises(SessionBusy) as busy:
            await OPERATIONS[how](session, result.run_id)
        assert busy.value.code == "SESSION_BUSY" and ids(busy.value) == [W] and W in str(busy.value)
        assert plain.state() == before
        assert plain.rows("SELECT run_id, status FROM runs") == [(result.run_id, "parked")]
    assert here.model.requests == [] and here.effects.keys() == [C1]


async def test_a_parked_run_goes_on_under_its_own_id_only(here: Desk):
    """§7: the same run goes on, so there is no recovery of it under another id, answered or not; nothing is written."""
    session, result = await here.parked()
    for answered in (False, True):
        if answered:
            await session.confirm(C0, True)
        with Plain(here.db) as plain:
            before = plain.state()
            with pytest.raises(ThenceError, match=f"{result.run_id}|{W}"):
                await session.spawn_recovery_with_run_id(result.run_id, "mine")
            assert plain.state() == before
    assert (await session.resume_run(result.run_id)).status == "completed"
    await ended_well(session, result.run_id)


async def test_while_answered_and_not_gone_on_send_is_refused_too(here: Desk):
    """§1: while parked SessionBusy. An answered run is parked until somebody goes on with it."""
    session, result = await here.parked()
    await session.confirm(C0, True)
    with pytest.raises(SessionBusy):
        await session.send("More?")
    assert here.effects.keys() == [C1]
    assert (await session.resume_run(result.run_id)).status == "completed"
    assert (await session.send("More?")).text == "More."


# ------------------------------------------------------------------ cancel


@pytest.mark.parametrize("how", ["cancel", "cancel_run", "other agent", "after a restart"])
async def test_cancel_of_a_parked_run(here: Desk, how: str):
    """§10: it claims the session, gives open calls results, ends it cancelled and closes its waits."""
    session, result = await here.parked()
    before = len(here.effects.ran)
    if how == "other agent":
        session = await here.open()
    elif how == "after a restart":
        session = await here.reopen()
    cancelled = await (session.cancel_run(result.run_id) if how == "cancel_run" else session.cancel())
    assert cancelled is True
    run = await session.run_snapshot(result.run_id)
    assert (run.status, run.state, run.resumable, run.owner) == ("cancelled", "cancelled", False, None)
    facts = await check_session(session)
    assert kinds(facts)[-1] == "turn.ended" and stored(facts[-1])["status"] == "cancelled"
    # a landed result counts, the call that was asked about did not run
    assert [(key, ok) for key, ok, _ in results(facts)] == [(C0, False), (C1, True)]
    assert len(here.effects.ran) == before == 1
    assert await session.waits() == [] == await here.agent.waits()
    with Plain(here.db) as plain:
        assert plain.rows("SELECT state, answer FROM waits") == [("closed", None)]
        assert plain.one("SELECT owner FROM session") is None
        assert plain.one("SELECT count(*) FROM inflight") == 0
    assert types(await session.run_events(result.run_id))[-1] == "agent_end"
    with wait_error("WAIT_CLOSED"):
        await session.answer(W, True)
    assert await session.cancel() is False
    again = await session.resume_run(result.run_id)
    assert (again.status, again.replayed) == ("cancelled", True)
    assert (await session.send("More?")).status == "completed"


async def test_cancel_of_a_parked_run_that_was_answered(here: Desk):
    """§1: only cancel is final; an approval that nobody used does not run anything after it."""
    session, result = await here.parked()
    await session.confirm(C0, True)
    assert await session.cancel_run(result.run_id) is True
    assert (await session.run_snapshot(result.run_id)).status == "cancelled"
    assert here.effects.keys() == [C1] and await session.waits() == []


# ------------------------------------------------------------------ closing and deleting


async def test_closing_changes_nothing_of_a_parked_run(here: Desk):
    """§1: neither close of the session nor of the agent ends it."""
    session, result = await here.parked()
    await session.close()
    await here.shut()
    with Plain(here.db) as plain:
        assert plain.rows("SELECT run_id, state FROM runs") == [(result.run_id, "parked")]
        assert plain.rows("SELECT state FROM waits") == [("open",)]
    session = await here.open()
    assert (await approve_all(session, result.run_id)).status == "completed"
    await ended_well(session, result.run_id)


# ------------------------------------------------------------------ recover


async def test_recover_goes_on_only_with_what_is_answered(desk):
    """§7: every answered wait is acted on; open ones, and runs with one of two answered, are left alone."""
    here: Desk = desk([calls("peek:0", "look:1", "peek:2"), done()], permission_policy=asks("peek"))
    runs = {}
    for name in ("all", "some", "none", "no"):
        session = await here.open(name)
        runs[name] = (await session.send("Go.")).run_id
        assert len(await session.waits()) == 2
        if name != "none":
            await session.confirm(C0, name != "no")
        if name in ("all", "no"):
            await session.confirm(C2, name != "no")
    await here.shut()
    before = len(here.effects.ran)
    session = await here.open("all")

    def give(session_id: str) -> SessionOptions:
        return SessionOptions(permission_policy=asks("peek"))

    found = await here.agent.recover(options=give)
    assert {one.session_id: (one.run_id, one.error) for one in found} == {
        "all": (runs["all"], None), "no": (runs["no"], None),
    }  # fmt: skip
    for one in found:
        assert (one.result.status, one.result.run_id) == ("completed", runs[one.session_id])
    assert len(here.effects.ran) == before + 2
    assert await here.agent.recover(options=give) == []
    with Plain(here.db) as plain:
        assert dict(plain.rows("SELECT session_id, state FROM runs")) == {
            "all": "completed", "no": "completed", "some": "parked", "none": "parked",
        }  # fmt: skip
    some = await here.session("some")
    await some.confirm(C2, True)
    [one] = await here.agent.recover(options=give)
    assert (one.session_id, one.result.run_id, one.error) == ("some", runs["some"], None)


async def test_recover_may_park_again(desk):
    """§7, §10: what goes on may have to wait again; then it is left alone until that is answered."""
    here: Desk = desk([calls("put:0"), calls("put:1"), done()], permission_policy=asks("put"))
    session, result = await here.parked()
    await session.confirm(C0, True)
    give = lambda session_id: SessionOptions(permission_policy=asks("put"))  # noqa: E731
    [one] = await here.agent.recover(options=give)
    assert (one.run_id, one.error, one.result.status, ids(one.result)) == (
        result.run_id, None, "parked", ["t1-r2-c0-w1"],
    )  # fmt: skip
    assert await here.agent.recover(options=give) == []


async def test_two_who_go_on_at_once(here: Desk):
    """§7: the claim is atomic; of two agents one goes on, the other is told that it is busy; the tool runs once."""
    session, result = await here.parked()
    await session.confirm(C0, True)
    other = await here.open()
    gate = Gate()

    def hold(key: str) -> str:
        gate.wait()
        return "put"

    here.effects.on["put"] = hold
    task = asyncio.ensure_future(session.resume_run(result.run_id))
    await gate.came()
    with pytest.raises(SessionBusy):
        await other.resume_run(result.run_id)
    gate.open()
    assert (await task).status == "completed"
    assert here.effects.times() == {C0: 1, C1: 1}


# ------------------------------------------------------------------ events and retention


async def test_events_of_others_wait_for_the_run_to_go_on(here: Desk):
    """§8: without an owner an outside event of a run that can go on waits for the next operation; then it is on that
    run's stream, without a gap."""
    session, result = await here.parked()
    await here.shut()
    with Plain(here.db) as plain:
        columns = "event_in(run_id, type, payload, request_id)"
        for _ in range(2):
            plain.db.execute(f"INSERT INTO {columns} VALUES(?, 'host.note', '{{\"n\":1}}', 'r1')", (result.run_id,))
        assert plain.one("SELECT count(*) FROM inbox") == 1
    session = await here.open()
    await session.confirm(C0, True)
    await session.resume_run(result.run_id)
    await ended_well(session, result.run_id)
    notes = [dict(event.payload) for event in await session.run_events(result.run_id) if event.type == "host.note"]
    assert notes == [{"n": 1}]
    with Plain(here.db) as plain:
        assert plain.one("SELECT count(*) FROM inbox") == 0


@pytest.mark.parametrize("cap", [0, 1])
async def test_a_parked_run_is_exempt_from_the_cap_on_runs(desk, cap: int):
    """§9: a run that is neither terminal nor superseded stays; it is judged when it ends."""
    here: Desk = desk(
        [reply("One."), calls("put:0"), done()], permission_policy=asks("put"),
        retention_limits={"max_runs_retained": cap},
    )  # fmt: skip
    session = await here.open()
    await session.send("First.")
    result = await session.send("Second.")
    assert result.status == "parked"
    assert [run.id for run in await session.runs()] == [result.run_id]
    session = await here.reopen()
    assert len(await session.waits()) == 1
    again = await approve_all(session, result.run_id)
    assert (again.status, again.run_id, again.tool_calls_count) == ("completed", result.run_id, 1)
    assert len(await session.runs()) == cap
    assert results(await check_session(session)) == [("t2-r1-c0", True, "put 0")]


async def test_going_on_needs_no_event(desk):
    """§9: both event caps hold for parked runs too, and a resume never needs an evicted row."""
    here: Desk = desk(
        [calls("put:0", "look:1"), done()], permission_policy=asks("put"), retention_limits={"max_events_per_run": 0}
    )
    session, result = await here.parked()
    assert await session.run_events(result.run_id) == []
    session = await here.reopen()
    assert (await approve_all(session, result.run_id)).text == "Done."
    assert results(await check_session(session)) == [(C0, True, "put 0"), (C1, True, "look 1")]
